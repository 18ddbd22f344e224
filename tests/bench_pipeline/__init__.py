"""``make bench-pipeline``: how fast logs become tables."""
