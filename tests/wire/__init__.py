"""Tests of hastore.wire."""
