"""Tests of hastore.broker."""
