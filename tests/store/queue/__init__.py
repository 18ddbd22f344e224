"""Tests of hastore.store.queue."""
