"""Streams recorded from real peers, and their mutations.

``corpus/FOLDER/NAME.hex`` is one recorded stream: a comment, then hex.  The folder names the
reader: ``client_port`` and ``ha_port`` of a node, ``to_slave`` (a master's frames) and
``to_client`` (a node's answers).  ``handmade`` holds streams that no valid peer ever sent.
"""

import random
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
# Limits that sizes and offsets are compared with, and the numbers beside them.
EDGES = (0, 1, 3, 4, 8, 0x7FFF, 0xFFFF, 1 << 20, 16 << 20, 200 << 20, 0x7FFF_FFFF, 0xFFFF_FFFF)
DIGITS = b"0123456789"
OTHER_TEXTS = (b"-1", b"-9", b"99999999999999999999", b"null", b"1e999", b"true", b'""', b"[]")


def recorded(folder: str) -> dict[str, bytes]:
    """Return the streams of one folder by name."""
    found = {}
    for path in sorted((CORPUS / folder).glob("*.hex")):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        found[path.stem] = bytes.fromhex("".join(lines))
    assert found, folder
    return found


def mutated(stream: bytes, others: list[bytes], choose: random.Random) -> bytes:
    """Change a stream in one to three ways."""
    data = bytearray(stream)
    for _ in range(choose.randint(1, 3)):
        if not data:
            return b"\0"
        at = choose.randrange(len(data))
        match choose.randrange(13):
            case 0:
                data[at] ^= 1 << choose.randrange(8)
            case 1:
                data[at] = choose.randrange(256)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + choose.randint(1, 16)]
            case 4:
                data[at:at] = choose.randbytes(choose.randint(1, 16))
            case 5:
                data[at:at] = data[at : at + choose.randint(1, 64)]
            case 6:  # mostly the sizes at the front
                place = choose.choice((0, 0, 4, 4, 8, at))
                data[place : place + 4] = choose.choice(EDGES).to_bytes(4, "big")
            case 7:
                other = choose.choice(others)
                data[at:] = other[choose.randrange(len(other)) :]
            case _:  # replaces a digit of the text
                places = [n for n, byte in enumerate(data) if byte in DIGITS]
                if places:
                    place = choose.choice(places)
                    data[place : place + 1] = choose.choice(OTHER_TEXTS)
    return bytes(data)


def mutated_inside(stream: bytes, others: list[bytes], choose: random.Random) -> bytes:
    """Change the header or the body of a remoting frame, and keep its sizes valid."""
    if len(stream) < 8:
        return mutated(stream, others, choose)
    word = int.from_bytes(stream[4:8], "big")
    header, body = stream[8 : 8 + (word & 0xFFFFFF)], stream[8 + (word & 0xFFFFFF) :]
    if body and choose.randrange(3) == 0:
        body = mutated(body, others, choose)
    else:
        header = mutated(header, others, choose)
    size = 4 + len(header) + len(body)
    prefix = size.to_bytes(4, "big") + (word & ~0xFFFFFF | len(header)).to_bytes(4, "big")
    return prefix + header + body


def mutations(
    streams: dict[str, bytes], count: int, seed: int, *, are_frames: bool = False
) -> list[tuple[str, bytes]]:
    """Return ``count`` mutations, spread over all streams, each with a name by which to find it.

    ``are_frames``: most keep their sizes valid, so that the reader parses them.
    """
    choose = random.Random(seed)
    names = sorted(streams)
    others = [stream for stream in streams.values() if stream]
    made = []
    for number in range(count):
        name = names[number % len(names)]
        mutate = mutated_inside if are_frames and choose.randrange(4) else mutated
        mutation = mutate(streams[name], others, choose)
        made.append((f"{name} (seed {seed}, mutation {number})", mutation))
    return made
