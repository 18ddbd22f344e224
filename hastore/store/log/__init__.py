"""The files of a commit log: written, flushed, deleted.  Begin with ``mapped_file_queue``."""
