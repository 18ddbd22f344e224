"""The C extension returns what its twins in Python return, for every input."""
