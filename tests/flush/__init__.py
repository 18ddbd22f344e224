"""Tests of hastore.flush."""
