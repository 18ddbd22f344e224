"""Tests of hastore.env with the real operating system."""
