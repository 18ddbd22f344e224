"""Harmful or mistaken peers at every listener, and at both of our own clients."""
