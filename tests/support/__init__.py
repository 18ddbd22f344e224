"""Helpers that tests in several folders share; a helper for one folder stays in that folder.

Begin with ``tests.patience`` (how long to wait) and the topic:

- ``env``: a disk, memory, clock and threads that a test controls (``fake_disk``);
- ``store``: logs, queues and indexes on that disk, logs built record by record (``log_builder``),
  and the rows that their tables must have;
- ``nodes``: masters and slaves in this process (``harness``, ``reading``), and peers and clients
  that send exactly what a test wants (``raw_client``, ``scripted_node``);
- ``commands``: `hastore …` in processes (``running``) or beside nodes in this one (``in_process``);
- ``worlds``: scenario worlds that are checked at their end, disks on loop devices, planted bugs;
- ``etcd``: real etcd servers, on ports that stay theirs when they are killed and started again,
  and ``certificates`` for TLS;
- ``what_is_read``: what a server and a client read of a stream of frames;
- ``bench``: rows of the benchmarks' tables;
- ``repository``: this repository's files, for tests about code and documents.
"""
