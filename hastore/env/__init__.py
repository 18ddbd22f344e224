"""The outside world (disk, wall clock, worker threads, randomness, sendfile) and its real form.

Begin with ``interface``.
"""
