"""``format("hastore")``: logs as tables and as streams.  Begin with ``data_source``."""
