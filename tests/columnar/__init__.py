"""Tests of the log as Arrow columns."""
