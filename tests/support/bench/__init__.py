"""The rows that both benchmarks print: begin with ``bound``."""
