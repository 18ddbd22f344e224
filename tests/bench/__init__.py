"""The benchmark behind `make bench`: the bounds table, measured as ratios in one run."""
