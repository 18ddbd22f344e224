"""The outside world as tests fake it: begin with ``fake_disk``."""
