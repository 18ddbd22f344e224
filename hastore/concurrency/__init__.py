"""Waking, waiting and deadlines: what the services of every layer share."""
