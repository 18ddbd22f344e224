"""The two recorded classic HA sessions, both directions, as ``wire.ha_frames`` writes them.

In the first, a slave with an empty log follows: it reports 0, then the end of each frame, then its
end again for each heartbeat.  The second is its reconnect at the end of the log.
"""

from hastore.wire.ha_frames import HEADER_SIZE, encode_header, encode_report
from tests.golden import stores

RECONNECT_REPORTS = 3
RECONNECT_HEARTBEATS = 2


def files():
    """Return the four files by name."""
    found = stores.frames()
    end = found[-1][0] + len(found[-1][1])
    heartbeat = encode_header(end, 0)
    again = stores.FIGURES.heartbeats
    sent = b"".join(encode_header(offset, len(body)) + body for offset, body in found)
    reports = [0, *(offset + len(body) for offset, body in found), *[end] * again]
    return {
        "ha_stream_m2s.bin": sent + again * heartbeat,
        "ha_stream_s2m.bin": b"".join(map(encode_report, reports)),
        "ha_stream_2_m2s.bin": RECONNECT_HEARTBEATS * heartbeat,
        "ha_stream_2_s2m.bin": RECONNECT_REPORTS * encode_report(end),
    }


def pieces():
    """Return the sizes in which the master's bytes arrived, as headers and bodies or both."""
    parts = []
    for _, body in stores.frames():
        parts += [HEADER_SIZE, len(body)]
    parts += [HEADER_SIZE] * stores.FIGURES.heartbeats
    left = iter(parts)
    return [sum(next(left) for _ in range(int(count))) for count in stores.FIGURES.pieces]
