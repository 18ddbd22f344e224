"""Tests of the scenario world, its history and its checker, and the catalog itself."""
