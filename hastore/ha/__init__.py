"""The classic HA protocol, master and slave: pure decisions, and the shells that wait and send."""
