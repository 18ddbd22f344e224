"""Stories about a cluster: told on a `World`, kept in a history, judged by a checker.

A story imports all it needs from here::

    from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario
"""

from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus, SlaveStart
from hastore_scenarios.story.registry import scenario
from hastore_scenarios.story.world import (
    DiskFaults,
    Link,
    LinkMode,
    Node,
    ScenarioSkipped,
    Stranger,
    Tally,
    World,
)

__all__ = [
    "BrokerRole",
    "DiskFaults",
    "FlushDiskType",
    "Link",
    "LinkMode",
    "Node",
    "PutMessageStatus",
    "ScenarioSkipped",
    "SlaveStart",
    "Stranger",
    "Tally",
    "World",
    "scenario",
]
