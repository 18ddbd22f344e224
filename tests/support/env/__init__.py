"""Fakes of disk, memory, clock and threads: begin with ``fake_disk``."""
