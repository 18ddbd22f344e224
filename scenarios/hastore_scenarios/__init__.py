"""Stories about a cluster: run on a `World`, recorded in a history, verified by a checker.

A story imports everything it needs from here::

    from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario

To read the code, begin with ``runner``.
"""

from hastore.cluster import operations
from hastore.errors import OperationRefusedError
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus, SlaveStart
from hastore.testing.group import NotInSetError
from hastore_scenarios.story.scenario import scenario
from hastore_scenarios.story.world import (
    CutStep,
    DiskFaults,
    Link,
    LinkMode,
    Node,
    ScenarioSkipped,
    Stranger,
    Tally,
    World,
    members_of,
)

__all__ = [
    "BrokerRole",
    "CutStep",
    "DiskFaults",
    "FlushDiskType",
    "Link",
    "LinkMode",
    "Node",
    "NotInSetError",
    "OperationRefusedError",
    "PutMessageStatus",
    "ScenarioSkipped",
    "SlaveStart",
    "Stranger",
    "Tally",
    "World",
    "members_of",
    "operations",
    "scenario",
]
