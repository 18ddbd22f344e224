"""Tests of hastore.cluster."""
