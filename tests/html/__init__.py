"""Tests of the parts that all HTML reports share."""
