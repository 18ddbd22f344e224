"""Tests of hastore.store.index."""
