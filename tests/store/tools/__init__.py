"""Tests of hastore.store.tools."""
