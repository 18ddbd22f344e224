"""Bytes to values and back, without I/O: HA frames, remoting commands and what they carry."""
