"""Reports as HTML pages: their style, their shared templates.  Begin with ``templates``."""
