"""``make bench-pipeline`` measures how fast logs become tables."""
