"""The classic HA protocol, master and slave: pure decisions, and the shells that wait and send.

Begin with ``ha_service`` (the master) and ``ha_client`` (the slave).
"""
