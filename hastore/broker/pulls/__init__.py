"""Reading messages: pulls, long polls, queries.  Begin with ``pull_message_processor``."""
