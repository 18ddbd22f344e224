"""The tests; their folders mirror those of hastore/."""
