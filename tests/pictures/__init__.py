"""The README's pictures, each drawn from a run; begin with ``__main__``."""
