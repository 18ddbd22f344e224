"""The HA session that was recorded from real RocketMQ: its end, and what the slave reported."""

import json

from hastore.wire.ha_frames import REPORT

END = 331_518


def recorded_reports(golden):
    """Return the recorded reports without the first 0 and the repeats while idle."""
    values = [v for (v,) in REPORT.iter_unpack((golden / "ha_stream_s2m.bin").read_bytes())]
    return list(dict.fromkeys(values[1:]))


def mark_all_delivered(path):
    """Mark the store's delayed messages as delivered, so that the log does not change."""
    (path / "config").mkdir()
    table = dict.fromkeys(range(1, 19), 1_000)
    (path / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": table}))
    return path
