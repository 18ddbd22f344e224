"""Tests of hastore.columnar, which reads the log as Arrow columns."""
