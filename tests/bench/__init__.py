"""The bounds table of the architecture, measured as ratios in one run (`make bench`)."""
