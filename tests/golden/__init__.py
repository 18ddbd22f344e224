"""Bytes that must not change: vectors written by hand, and the files of a real RocketMQ."""
