"""The job ``report``: a log as tables and as a page.  Begin with ``job``, then ``page``."""
