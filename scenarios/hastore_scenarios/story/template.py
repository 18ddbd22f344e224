"""The file that ``hastore scenario new`` writes: a working story with comments on how to go on."""

from __future__ import annotations

import keyword
import re
from typing import Final

_TEMPLATE: Final = '''"""A story about a master and its slave.

    hastore scenario run {file}

The same story runs on real processes and, with ``--world sim --seed 7``, in the simulator, where
time is virtual and the seed decides everything.
"""

from hastore_scenarios import LinkMode, PutMessageStatus, World, scenario


# The file may have more functions with this decorator; each runs in a world of its own.
@scenario(
    title="A slave that is cut off",
    proves="producers learn that a slave cannot be reached, and no message is lost",
)
async def {name}(world: World) -> None:
    """Two nodes, a partition, and its end."""
    # Nodes have names of your choice.  Settings are the fields of hastore.config, by name; by
    # default, scenarios use small files and short time-outs.
    master = await world.start_master("a", slave_timeout_ms=500)
    slave = await world.start_slave("b", master=master)
    await world.wait_healthy(slave)

    # Puts.  put_many keeps up to 64 in flight; `async with world.load(master) as load:` puts
    # without pause for the length of the block, through broken links and restarts.
    tally = await world.put_many(master, 100)
    world.expect(tally.all_are(PutMessageStatus.PUT_OK), "both nodes have them", counts=tally)

    # Faults.  link(slave): cut, reset, slow, split, heal.  Nodes: stop, kill, pause, resume,
    # restart, promote, follow.  Disks: disk(node).full, slow, fail_sync, heal.
    world.say("the network between them lets nothing pass")
    world.link(slave).cut(LinkMode.CUT)
    put = await world.put(master)
    world.expect(
        put.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        "the put is stored, but no slave has acknowledged it",
        status=put.label,
    )

    # Wait for conditions, never for a fixed time.
    world.link(slave).heal()
    await world.wait_healthy(slave)
    status = await world.status(slave)
    world.expect(status.max_offset > 0, "the slave has it now", ends_at=status.max_offset)
    put = await world.put(master)
    world.expect(put.status is PutMessageStatus.PUT_OK, "as before", status=put.label)

    # There is nothing to clean up: faults end, slaves catch up, nodes stop, and the checker
    # compares every answer that a producer received with the logs.
'''


def function_name(stem: str) -> str:
    """Return a function name for a file's name."""
    name = re.sub(r"\W+", "_", stem).strip("_").lower() or "my_story"
    return f"story_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def template(file: str, stem: str) -> str:
    """Return the text of a new scenario file."""
    shown = "".join(c if c.isprintable() and c not in '\\"' else "?" for c in file)
    return _TEMPLATE.format(file=shown, name=function_name(stem))
