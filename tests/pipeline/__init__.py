"""Tests of hastore.pipeline, which share one Spark session."""
