"""The catalog: one scenario a file, numbered in the order in which they are best read."""
