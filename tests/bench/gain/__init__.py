"""Two versions of hastore in turn, by one driver: begin with ``__main__``."""
