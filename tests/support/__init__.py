"""Helpers that tests of several folders share; a helper of one folder stays in it.

Begin with ``tests.patience`` (how long to wait) and the topic:

- ``env``: a disk, memory, clock and threads that do what a test says (``fake_disk``);
- ``store``: logs, queues and indexes on that disk, logs built record by record (``log_builder``),
  and what their tables must be;
- ``nodes``: masters and slaves in this process (``harness``, ``reading``), and peers and clients
  that say exactly what a test wants (``raw_client``, ``scripted_node``);
- ``commands``: `hastore …` in processes (``running``) or beside nodes in this one (``in_process``);
- ``worlds``: worlds of the scenarios judged at their end, disks on loop devices, planted bugs;
- ``bench``: rows of the benchmarks' tables.
"""
