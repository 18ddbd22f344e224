"""Tests of hastore.access."""
