"""The pytest plugin: fixtures that start nodes on free ports in ``tmp_path``.

hastore is imported only when a fixture is used.  All nodes of a test end with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hastore.testing.cluster import Cluster
    from hastore.testing.node import ClusterNode


@pytest.fixture
def hastore_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a master and its slaves in this process: ``hastore_cluster(slaves=2, role=…, …)``."""
    yield from _clusters(tmp_path / "hastore", processes=False)


@pytest.fixture
def hastore_processes(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """As ``hastore_cluster``, each node a process, for real SIGKILL and SIGSTOP."""
    yield from _clusters(tmp_path / "hastore-processes", processes=True)


@pytest.fixture
def hastore_group(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a replica group in this process: ``hastore_group(nodes=3, role=…, …)``."""
    yield from _clusters(tmp_path / "hastore-group", processes=False, is_group=True)


@pytest.fixture
def hastore_group_processes(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """As ``hastore_group``, each node a process, for real SIGKILL and SIGSTOP."""
    yield from _clusters(tmp_path / "hastore-group-processes", processes=True, is_group=True)


@pytest.fixture
def hastore_master(hastore_cluster: Callable[..., Cluster]) -> ClusterNode:
    """An ASYNC_MASTER without slaves, in this process."""
    return hastore_cluster(slaves=0, role="ASYNC_MASTER").master


def _clusters(
    directory: Path, *, processes: bool, is_group: bool = False
) -> Iterator[Callable[..., Cluster]]:
    from hastore.testing.cluster import Cluster  # noqa: PLC0415 - only tests with nodes pay for it

    made: list[Cluster] = []

    def start(*count: int, **options: Any) -> Cluster:
        place = directory if not made else directory.with_name(f"{directory.name}-{len(made) + 1}")
        cluster = Cluster(place, processes=processes)
        made.append(cluster)
        if is_group:
            return cluster.start_group(*count, **options)
        return cluster.start(*count, **options)

    yield start
    errors = []
    for cluster in reversed(made):
        try:
            cluster.close()
        except Exception as error:  # noqa: BLE001 - the others are closed, too
            errors.append(error)
    if errors:
        raise errors[0]
