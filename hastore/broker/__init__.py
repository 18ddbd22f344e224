"""A node: its parts in order, puts, pulls and queries, delays, expiry, the client port."""
