"""docs/performance.md and its plot, from measured JSON: begin with ``__main__``."""
