"""Dispatch: the log's records into consume queues and index, as far as the log is confirmed."""
