"""TLS: who is at the other end of a connection is proven, and nobody between can read it.

Begin with ``tls_contexts``: what a node's certificate files are made into.
"""
