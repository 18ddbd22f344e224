"""A child with producer tasks on one connection to a master's client port."""

from __future__ import annotations

import trio

from hastore.client.producer import Producer
from tests.bench.axes.child import Answer, options, serve
from tests.bench.axes.load import Load, check_stored, closed_loop


async def main(address: tuple[str, int], load: Load) -> None:
    """Send to the master; the first answer waits until a slave is in step."""
    messages = load.messages()
    async with Producer.connect(address, request_timeout_s=60.0) as producer:
        while not (await producer.send(messages[0], queue_id=0)).ok:
            await trio.sleep(0.01)
        turn = 0

        async def put() -> None:
            nonlocal turn
            turn += 1
            message = messages[turn % len(messages)]
            result = await producer.send(message, queue_id=message.queue_id)
            check_stored(result.status)

        async def act(tasks: int, seconds: float, count_min: int) -> Answer:
            return await closed_loop(put, tasks, seconds, count_min)

        await serve({}, act)


if __name__ == "__main__":
    given = options()
    host, port = given["address"]
    trio.run(main, (host, port), Load(**given["load"]))
