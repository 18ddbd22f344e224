"""One message for people and for programs: lines, details, JSON, ``-F``."""
