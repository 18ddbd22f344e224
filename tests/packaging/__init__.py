"""Tests of the built packages: their names, metadata and commands."""
