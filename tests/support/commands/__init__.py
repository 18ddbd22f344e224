"""The command line under test: begin with ``running``."""
