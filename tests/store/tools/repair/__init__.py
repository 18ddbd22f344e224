"""Tests of hastore.store.tools.repair."""
