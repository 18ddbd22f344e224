"""What all commands share: the terminal, errors, logging and times."""
