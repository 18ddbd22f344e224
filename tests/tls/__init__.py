"""TLS: certificates, contexts, and both ends of encrypted connections."""
