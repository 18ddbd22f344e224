"""A node: its parts in order, the path of a put, the client port."""
