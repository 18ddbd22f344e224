"""Every command prints to an ASCII-only terminal or pipe without an encoding error."""

import io
import sys

import pytest

from hastore_cli.app.terminal import as_shown, show_all_text
from hastore_cli.main import main
from tests.cli.live_node import master_with
from tests.cli.on_a_terminal import on_a_terminal
from tests.support.commands.in_process import hastore_here
from tests.support.store.log_builder import LogBuilder

# Turns off everything with which Python makes a C locale UTF-8.
ASCII = {
    "LC_ALL": "C",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "",
    "PYTHONUTF8": "0",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A directory with two logs, one of them damaged; its path and messages are not ASCII."""
    here = tmp_path_factory.mktemp("grün")
    for name in ("D1", "D2"):
        builder = LogBuilder()
        for number in range(50):
            raw = f"KEYS\x01schlüssel{number}\x02TAGS\x01bezahlt…\x02".encode()
            builder.add("grüße, 日本".encode(), properties_raw=raw)
        builder.write(here / name)
    path = next((here / "D2" / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[1500:1600] = bytes(100)
    path.write_bytes(data)
    return here


def checked(shown):
    """Assert that the output is ASCII, is not empty and shows no encoding error; return it."""
    assert shown.isascii(), shown
    assert shown.strip()
    for wrong in ("Traceback", "unexpected", "codec"):
        assert wrong not in shown, shown
    return shown


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "--help"),
        (0, "status --help"),
        (0, "scenario run --help"),
        (0, "version"),
        (0, "completion bash"),
        (0, "master --data grün --check-config"),
        (0, "log info D1"),
        (2, "log info D1 -o grün"),
        (0, "log cat D1"),
        (4, "log cat D2 -o jsonl"),
        (0, "log find D1 -k schlüssel7"),
        (0, "log tail D1"),
        (0, "log verify D1 --log-only"),
        (4, "log verify D2"),
        (4, "log diff D1 D2"),
        (10, "log repair D2 --dry-run"),
        (2, "log info grün"),
        (1, "get --key ü --dir D1"),
        (0, "get --offset 0 --dir D1"),
        (3, "status"),
        (3, "status 127.0.0.1:1"),
        (3, "explain 127.0.0.1:1"),
        (3, "check 127.0.0.1:1"),
        (3, "wait 127.0.0.1:1 --healthy --timeout 0s"),
        (1, "doctor D1"),
        (2, "consume grün --addr 127.0.0.1:1"),
        (2, "produce grün"),
        (0, "scenario list"),
        (0, "scenario show sync-put"),
        (0, "scenario run sync-put --world sim --out grün-run"),
        (0, "sim run --seeds 0..1 --jobs 1"),
        (0, "sim replay 0 --trace"),
        (0, "pipeline list"),
    ],
)
def test_commands_without_a_node_print_ascii(here, monkeypatch, code, line):
    """Tables, reports, and errors that contain paths and topics."""
    monkeypatch.setenv("HASTORE_ADDR", "127.0.0.1:1")  # a node may run at the default port
    monkeypatch.chdir(here)
    streams = []
    for name in ("stdout", "stderr"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
        monkeypatch.setattr(sys, name, stream)
        streams.append(stream)
    assert main(line.split()) == code
    for stream in streams:
        stream.flush()
    checked("".join(stream.buffer.getvalue().decode() for stream in streams))


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "status --help"),
        (4, "log verify D2"),
        (0, "log cat D1 -F %k%s\\n"),
        (0, "scenario run sync-put --world sim --out grün-run"),
        pytest.param(0, "log cat D1", marks=pytest.mark.soak),
        pytest.param(0, "scenario list", marks=pytest.mark.soak),
        pytest.param(0, "sim run --seeds 0..0 --jobs 1", marks=pytest.mark.soak),
    ],
)
def test_terminal_with_an_ascii_locale_gets_ascii(here, code, line):
    """Also for paths, written files and progress bars."""
    found, lines = on_a_terminal(*line.split(), cwd=here, **ASCII)
    assert found == code, lines
    checked("\n".join(lines))


@pytest.mark.parametrize("more", [(), ("-F", "%s\\n")], ids=["table", "format"])
def test_latin_1_terminal_gets_latin_1_bytes(here, more):
    """Also for a body that a format prints; characters missing from Latin-1 are escaped."""
    command = ("log", "cat", "D1", "-n", 1, *more)
    _, lines = on_a_terminal(*command, columns=200, cwd=here, PYTHONIOENCODING="l1")
    data = "\n".join(lines).encode(errors="surrogateescape")
    assert "grüße, \\u65e5\\u672c" in data.decode("l1")


def test_a_node_and_its_clients_print_ascii(here):
    """The node's log, and the commands that query it, produce or consume."""
    body = "grüße\n".encode()
    streams = {"PYTHONIOENCODING": "ascii"}  # under a C locale, an argument cannot hold this key
    with master_with(here / "näme", **streams) as master:
        address = ("--addr", master.address)
        for arguments in (
            ["produce", "orders", *address, "-k", "schlüssel"],
            ["topic", "describe", "orders", *address],
            ["status", "näme", "-e"],
            ["explain", "näme"],
            ["doctor", "näme"],
            ["check", "näme", "--warn-disk", "100", "--crit-disk", "100"],
        ):
            found, lines = on_a_terminal(*arguments, cwd=here, stdin=body, **streams)
            assert found == 0, (arguments, lines)
            checked("\n".join(lines))
        for code, arguments in (
            (23, ["produce", "orders", *address, "--tag", "ü" * 20_000]),
            (0, ["consume", "orders", *address, "-e", "-g", "group"]),
            (0, ["get", "--key", "schlüssel", "--topic", "orders", *address]),
            (0, ["group", "describe", "group", *address]),
            (0, ["status", "näme", "-o", "json"]),
        ):
            done = hastore_here(*arguments, cwd=here, stdin=body, **streams)
            assert done.returncode == code, (arguments, done)
            checked(done.stdout + done.stderr)
        log = master.log.read_bytes()
    assert log
    assert log.isascii()


def test_unencodable_characters_are_replaced_or_escaped():
    """A similar character if there is one, else an escape; encodable characters are kept."""
    ascii_stream, latin, utf8 = (
        io.TextIOWrapper(io.BytesIO(), encoding=name) for name in ("ascii", "latin-1", "utf-8")
    )
    text = "0 … 17 × 3 — 84 µs\u202f№ ü \udcff"
    assert as_shown(text, ascii_stream) == "0 ... 17 x 3 - 84 us \\u2116 \\xfc \\udcff"
    assert as_shown(text, latin) == "0 ... 17 × 3 - 84 µs \\u2116 ü \\udcff"
    assert as_shown(text, utf8) == text.replace("\udcff", "\\udcff")
    for stream in (ascii_stream, latin, utf8):
        show_all_text(stream)
        stream.write(text)
        stream.flush()
        encoding = stream.encoding
        assert stream.buffer.getvalue().decode(encoding) == as_shown(text, stream)
