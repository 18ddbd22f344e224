"""Rows of three formats become messages, and each possible error of a row is reported."""

import base64
import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hastore.errors import ConfigError
from hastore.message import Message
from hastore.pipeline.transfer.import_rows import find_files, read_rows

HOSTILE_BODY = 'a "quoted", body\r\nwith \\ lines\u2028 and\tblanks  '
ROWS = [
    {"topic": "orders", "body": HOSTILE_BODY, "queue_id": 3, "properties": {"TAGS": "t", "é": "1"}},
    {"topic": "orders", "body": "", "properties": {}, "flag": 7},
    {"topic": "a b", "body": base64.b64encode(b"\xff\0").decode(), "body_encoding": "base64"},
]


def read(path):
    return list(read_rows(find_files(str(path))))


def lines_of(path, *lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def write(path, rows):
    """Write rows in the format of the path's suffix, by the standard library or Arrow alone."""
    columns = ["topic", "body", "body_encoding", "queue_id", "properties", "flag"]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        text = io.StringIO(newline="")
        lines = csv.writer(text, quoting=csv.QUOTE_ALL)
        lines.writerow(columns)
        for row in rows:
            values = [row.get(name) for name in columns]
            lines.writerow([json.dumps(v) if isinstance(v, dict) else v for v in values])
        path.write_bytes(text.getvalue().encode())
    else:
        types = dict.fromkeys(columns, pa.string()) | {
            "queue_id": pa.int32(),
            "flag": pa.int32(),
            "properties": pa.map_(pa.string(), pa.string()),
        }
        made = [
            {**row, "properties": list(row["properties"].items())} if "properties" in row else row
            for row in rows
        ]
        pq.write_table(pa.Table.from_pylist(made, pa.schema(list(types.items()))), path)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_three_formats_hold_the_same_messages(tmp_path, suffix):
    """Quotes, line ends, blanks and bytes are kept; a row without a queue has none."""
    rows = read(write(tmp_path / f"rows.{suffix}", ROWS))
    assert [row.message for row in rows] == [
        Message("orders", HOSTILE_BODY.encode(), properties={"TAGS": "t", "é": "1"}, queue_id=3),
        Message("orders", b"", properties={}, flag=7),
        Message("a b", b"\xff\0", properties={}),
    ]
    assert [row.queue_id for row in rows] == [3, None, None]
    assert [row.number for row in rows] == [1, 2, 3]


def test_directory_is_read_in_the_order_of_its_part_names(tmp_path):
    """Rows are counted over all parts; other files of the writer are skipped."""
    for number in (1, 0):
        write(tmp_path / f"part-0000{number}.jsonl", [{"topic": f"t{number}", "body": ""}] * 2)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part.crc").touch()
    rows = read(tmp_path)
    assert [(row.number, row.topic) for row in rows] == [(1, "t0"), (2, "t0"), (3, "t1"), (4, "t1")]
    assert rows[2].place == f"{tmp_path}/part-00001.jsonl, line 1"


def test_tags_and_keys_replace_properties(tmp_path):
    """Rows written by hand need no properties; the store's checksum is never sent."""
    rows = read(
        write(
            tmp_path / "by_hand.jsonl",
            [
                {"topic": "t", "body": "b", "tags": "red", "keys": "k1 k2"},
                {"topic": "t", "body": "b", "tags": "x", "properties": {"__CRC32#": "1", "A": "2"}},
            ],
        )
    )
    assert rows[0].message.properties == {"TAGS": "red", "KEYS": "k1 k2"}
    assert rows[1].message.properties == {"A": "2"}


def test_flag_may_be_negative(tmp_path):
    """It is a signed number of 32 bits that only users read; exports write it so, too."""
    for flag in (-1, -(2**31), 2**31 - 1):
        line = {"topic": "t", "body": "b", "flag": flag, "queue_offset": -1}
        (row,) = read(write(tmp_path / "flags.jsonl", [line]))
        assert row.message.flag == flag


def test_internal_messages_of_a_broker_are_left_out(tmp_path):
    """Timers, half messages, reports; a committed message loses what marks its transaction."""
    marks = {"TRAN_MSG": "true", "KEYS": "k"}
    rows = read(
        write(
            tmp_path / "all.jsonl",
            [
                {"topic": "SCHEDULE_TOPIC_XXXX", "body": ""},
                {"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "body": ""},
                {"topic": "OFFSET_MOVED_EVENT", "body": ""},
                {"topic": "t", "body": "", "sys_flag": 4},
                {"topic": "t", "body": "", "sys_flag": 8 | 0x30 | 1, "properties": marks},
            ],
        )
    )
    assert [row.message is None for row in rows] == [True, True, True, True, False]
    assert rows[4].message.sys_flag == 1
    assert rows[4].message.properties == {"KEYS": "k"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{broken", r"line 2 is not JSON: \{broken"),
        (b"\xff\xfe", "line 2 is not JSON"),
        (b"[1]", "line 2 is JSON, but not an object"),
        (b'{"topic": "t"}', "line 2 has no column 'body'"),
        (b'{"body": "t"}', "line 2 has no column 'topic'"),
        (b'{"topic": "t", "body": "b", "colour": 1}', "line 2 has an unknown column 'colour'"),
        (b'{"topic": "", "body": "b"}', "line 2: topic is not a name"),
        (b'{"topic": "t", "body": null}', "line 2: body is not text"),
        (b'{"topic": "t", "body": "\\ud800"}', "line 2: body is not UTF-8 text"),
        (b'{"topic": "t", "body": "b", "queue_id": -1}', "line 2: queue_id is not a number from 0"),
        (
            b'{"topic": "t", "body": "b", "flag": -2147483649}',
            "line 2: flag is not a number from -2147483648 to 2147483647",
        ),
        (b'{"topic": "t", "body": "b", "flag": true}', "line 2: flag is not a number"),
        (b'{"topic": "t", "body": "b", "body_encoding": "hex"}', "'hex' is neither utf-8 nor"),
        (b'{"topic": "t", "body": "!", "body_encoding": "base64"}', "line 2: body is not base64"),
        (b'{"topic": "t", "body": "b", "properties": {"a": 1}}', "not an object with text values"),
    ],
)
def test_bad_line_is_reported(tmp_path, line, message):
    """The error names the file and the line, and says what is wrong."""
    path = lines_of(tmp_path / "bad.jsonl", b'{"topic": "t", "body": "good"}', line)
    with pytest.raises(ConfigError, match=message) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}, line 2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'"topic","body"\n"t","b"\n"t"\n', "line 3 has 1 values, not 2"),
        (
            b'"topic","body","queue_id"\n"t","two\nlines","x"\n',
            "line 2: queue_id is not a number: x",
        ),
        (b'"topic","body"\n"t","b"x\n', "line 2 is not CSV"),
        (b'"topic","body"\n"t","\xff"\n', "is not CSV"),
        (b'"topic","size of it"\n', "line 1 has an unknown column 'size of it'"),
        (b'"topic","body","properties"\n"t","b","{"\n', "line 2: properties are not JSON"),
    ],
)
def test_bad_line_of_csv_is_reported(tmp_path, text, message):
    """If a record has several lines, the error names the first."""
    path = tmp_path / "bad.csv"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_csv_accepts_a_large_body(tmp_path):
    """By default, Python's csv accepts at most 128 KiB."""
    (row,) = read(write(tmp_path / "large.csv", [{"topic": "t", "body": "x" * 300_000}]))
    assert len(row.message.body) == 300_000


def test_refuses_paths_that_are_not_exports(tmp_path):
    """A missing file, an empty directory, another kind of file, and invalid Parquet."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="does not exist"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="holds no parts of an export"):
        read(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"is not \.jsonl, \.csv or \.parquet"):
        read(lines_of(tmp_path / "notes.txt", b"hello"))
    with pytest.raises(ConfigError, match="is not Parquet"):
        read(lines_of(tmp_path / "bad.parquet", b"hello"))
