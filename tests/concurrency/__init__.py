"""Tests of hastore.concurrency."""
