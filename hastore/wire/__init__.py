"""Bytes to values and back, without I/O: HA frames, remoting commands and what they carry.

Begin with ``ha_frames`` and ``remoting_command``.
"""
