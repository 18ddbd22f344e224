"""The client port: connections, limits, the table of requests.  Begin with ``remoting_server``."""
