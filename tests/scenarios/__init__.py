"""Tests of the scenarios' worlds, their history, checker and report, and of the catalog."""
