"""Programs that talk to a broker: producer and admin."""
