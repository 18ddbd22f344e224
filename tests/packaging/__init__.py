"""What is installed: the wheel's names, its metadata, and the commands it brings."""
