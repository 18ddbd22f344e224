"""Programs that talk to a broker: producer, consumer and admin."""
