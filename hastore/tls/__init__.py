"""TLS: who is at the other end of a connection is proven, and nobody between can read it.

Begin with ``tls_contexts``: what a node's certificate files are made into.  ``tls_socket`` encrypts
a connection, ``tls_calls`` has an ``Env``'s raw socket calls for such connections, ``tls_fault``
says what is wrong with a peer.
"""
