"""Tests of hastore.ha."""
