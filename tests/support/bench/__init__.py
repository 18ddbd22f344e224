"""What both benchmarks print: begin with ``bound``."""
