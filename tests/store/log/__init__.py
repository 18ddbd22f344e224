"""Tests of hastore.store.log."""
