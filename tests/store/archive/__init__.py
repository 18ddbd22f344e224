"""Tests of hastore.store.archive."""
