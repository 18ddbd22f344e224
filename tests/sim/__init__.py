"""Tests of the simulator: its disk and network behave like real ones, and seeds replay."""
