"""Tests of the simulator: its disk and network are what they stand for, and seeds replay."""
