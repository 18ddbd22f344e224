"""Tests of hastore.store.record."""
