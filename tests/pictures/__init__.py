"""The pictures of the README, each made of something that runs; begin with ``__main__``."""
