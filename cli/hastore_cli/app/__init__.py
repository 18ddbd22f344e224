"""What all commands share: the terminal, errors, logging, quantities and times."""
