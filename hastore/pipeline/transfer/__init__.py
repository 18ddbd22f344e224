"""The jobs ``export`` and ``import``: messages to files, and from files to a master."""
