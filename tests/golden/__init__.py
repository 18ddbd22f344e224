"""Bytes that do not move: vectors written by hand, and what real RocketMQ wrote."""
