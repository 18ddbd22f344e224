"""Tests of hastore.dispatch."""
