"""How long a test waits for something that must happen.

Both are limits, not measurements: a wait ends when its condition holds. They suit a machine under
ten times the load it can handle. They are real time, not that of trio's `autojump_clock`.
"""

# Within this process. Shorter than a node's time-outs for idle peers (75 s and more), so that such
# a time-out cannot be mistaken for the tested event.
WITHIN_S = 60.0
# If a process must start, and Python or a JVM with it.
PROCESS_WITHIN_S = 300.0
