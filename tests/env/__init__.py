"""Tests of the outside world as it is."""
