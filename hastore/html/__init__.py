"""What HTML reports share: style and templates.  Begin with ``templates``."""
