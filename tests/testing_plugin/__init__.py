"""The pytest plugin ``hastore.testing``, used as in another project's tests."""
