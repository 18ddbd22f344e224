"""One axis at a time around one centre: begin with ``load``, then ``put_axes``."""
