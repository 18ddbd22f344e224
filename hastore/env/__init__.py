"""The outside world (disk, wall clock, off-load, randomness, send-file) and its real form."""
