"""Forcing the log to disk and having the next file ready."""
