"""Tests against programs that are not ours."""
