"""Tests of hastore.client."""
