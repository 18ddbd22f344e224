"""The store: codec, files, log, tools."""
