"""The tests; they mirror hastore/, and each says in one sentence what is true."""
