"""The commit log on disk: synchronous, no trio."""
