"""How long a test waits for what must come.

Both are caps, not measurements: a wait ends when its condition holds. They suit a machine that has
ten times as much to do as it can. They are real time, not that of trio's `autojump_clock`.
"""

# Within this process. Shorter than a node's own time-outs for idle peers (75 s and more), so that
# those cannot pass for what is tested.
WITHIN_S = 60.0
# Where a process must start, and Python or a JVM with it.
PROCESS_WITHIN_S = 300.0
