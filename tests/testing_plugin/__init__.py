"""The pytest plugin ``hastore.testing``, used as anybody uses it."""
