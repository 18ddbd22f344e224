"""Delayed messages."""
