"""Tests of the pipeline: one Spark session for all that need one."""
