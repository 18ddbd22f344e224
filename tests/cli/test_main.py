"""The root command: help, versions, completion, and the exit codes of failures."""

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hastore.errors import DiskError, FlushFailedError, ListenError, StoreLockedError
from hastore.quantities import format_count
from hastore_cli.app.error_report import collapsed, main_error, report
from hastore_cli.main import main, root
from tests.cli.on_a_terminal import read_from
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import (
    REPO_ROOT,
    WITHIN_S,
    environment,
    hastore,
    is_one_line_with_a_next_step,
)
from tests.support.store.log_builder import LogBuilder

COMMANDS = ["master", "slave", "produce", "status", "log", "scenario", "completion", "version"]


def test_help_names_every_command():
    """`hastore --help` groups the commands and has examples."""
    result = CliRunner().invoke(root, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"  {name} " in result.output
    assert "Examples:" in result.output
    assert "Run nodes" in result.output


@pytest.mark.parametrize(
    "command",
    [
        ["master"],
        ["slave"],
        ["produce"],
        ["status"],
        ["log"],
        ["scenario"],
        ["scenario", "list"],
        ["scenario", "show"],
        ["scenario", "run"],
        ["completion"],
        ["version"],
    ],
    ids=" ".join,
)
def test_every_command_has_help_with_examples(command):
    """--help shows a command line to copy."""
    result = CliRunner().invoke(root, [*command, "--help"])
    assert result.exit_code == 0
    assert "xamples" in result.output
    assert f"hastore {command[0]}" in result.output


def parameters(command, context):
    """All parameters of a command and of its subcommands."""
    yield from command.params
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from parameters(command.get_command(context, name), context)


def test_numeric_options_refuse_text_and_nan():
    """In every command; the error says "integer" or "number", not click's "integer range"."""
    numbers = 0
    for parameter in parameters(root, click.Context(root)):
        if isinstance(parameter.type, (click.IntRange, click.FloatRange)):
            numbers += 1
            for text in ("abc", "nan"):
                with pytest.raises(click.BadParameter, match=r"not a valid (integer|number)\b"):
                    parameter.type.convert(text, parameter, None)
    assert numbers > 20


SHORT_FLAGS = {
    "-F": {"--format"},
    "-a": {"--all"},
    "-c": {"--config"},
    "-e": {"--exit"},
    "-f": {"--follow"},
    "-g": {"--group"},
    "-k": {"--key"},
    "-n": {"--count", "--last", ""},  # a count
    "-o": {"--output"},
    "-p": {"--property"},
    "-q": {"--queue"},
    "-t": {"--topic"},
    "-w": {"--watch"},
    "-y": {"--yes"},
}


def test_a_short_flag_means_the_same_in_every_command():
    """The list is complete, and docs/cli.md documents each flag."""
    found = {}
    for parameter in parameters(root, click.Context(root)):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            (short, *_), long = (
                [name for name in parameter.opts if name.startswith("--") is is_long] or [""]
                for is_long in (False, True)
            )
            if short:
                found.setdefault(short, set()).add(long[0])
    assert found == SHORT_FLAGS
    page = (REPO_ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = page.partition("A short flag means the same")[2].partition("\n\n")[0]
    assert set(re.findall("`(-.)`", section)) == set(SHORT_FLAGS)


def test_tag_given_as_topic_gets_a_hint(tmp_path):
    """-t is refused if the topic is an argument, and explained if no message matches."""
    for name in ("produce", "consume"):
        done = hastore_here(name, "orders", "-t", "paid || sent")
        assert done.returncode == 2
        assert "for a tag write --tag 'paid || sent'" in done.stderr
        assert is_one_line_with_a_next_step(done.stderr)
    store = LogBuilder().fill(1).write(tmp_path / "D1")
    for name in ("find", "tail"):
        done = hastore_here("log", name, store, "-t", "paid")
        assert (done.returncode, done.stdout) == (0, "")
        assert "  next  -t is the topic; for a tag write --tag" in done.stderr
        assert "next" not in hastore_here("log", name, store, "-t", "orders").stderr


def test_integer_options_accept_grouped_numbers():
    """Printed numbers can be pasted back into every command; other groupings are refused."""
    numbers = 0
    for parameter in parameters(root, click.Context(root)):
        if isinstance(parameter.type, click.IntRange):
            numbers += 1
            number = parameter.type.max or 236_602_469
            for text in (
                format_count(number),
                f" {number:_} ",
                f"{number:,}".replace(",", "\u202f"),
            ):
                assert parameter.type.convert(text, parameter, None) == number
            for text in ("1,000", "1.000", "1 00", "12 3456", "1234 567", "1 000 00"):
                with pytest.raises(click.BadParameter, match="not a valid integer: write 1000"):
                    parameter.type.convert(text, parameter, None)
    assert numbers > 20


def test_float_options_accept_grouped_numbers():
    """Rates are printed in groups, as offsets are."""
    fractions = [
        each
        for each in parameters(root, click.Context(root))
        if isinstance(each.type, click.FloatRange)
    ]
    assert len(fractions) > 1
    for parameter in fractions:
        for text, number in (
            ("5 000", 5_000.0),
            ("5_000.5", 5_000.5),
            ("1 236 602.5", 1_236_602.5),
        ):
            assert parameter.type.convert(text, parameter, None) == number
        for text in ("5,000", "5 00", "1 236 60", "nan"):
            with pytest.raises(click.BadParameter, match="is not a valid number"):
                parameter.type.convert(text, parameter, None)


def test_grouped_number_without_quotes_gets_a_hint(tmp_path):
    """The shell splits it into three words; the hint shows the quotes."""
    done = hastore_here("log", "cat", tmp_path, "--from-offset", "236", "602", "469")
    assert done.returncode == 2
    assert "next  put quotes around a number with spaces, such as '236 602 469'" in done.stderr


def test_help_imports_no_command_and_no_trio():
    """These imports would make help slow."""
    code = (
        "import sys; from hastore_cli.main import main; main(['--help']); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    imported = set(done.stderr.decode().split())
    assert not imported & {
        "trio",
        "structlog",
        "hastore",
        "hastore_scenarios",
        "hastore_cli.node.commands",
    }


def test_help_imports_no_part_of_the_product():
    """`hastore --help` takes 0.1 s more than `import click`: trio alone would double that."""
    script = (
        "import sys; from hastore_cli.main import root\n"
        "try: root(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert "Usage: " in done.stdout
    imported = done.stderr.split()
    parts = {each.split(".")[0] for each in imported} & {"hastore", "trio", "attr", "structlog"}
    assert (done.returncode, parts) == (0, set())


def test_help_has_colour_only_when_allowed():
    """FORCE_COLOR turns it on; a pipe and NO_COLOR turn it off."""
    assert "\x1b[" not in hastore("--help").stdout
    assert "\x1b[3" in hastore("--help", FORCE_COLOR="1").stdout
    assert "\x1b[3" not in hastore("--help", FORCE_COLOR="1", NO_COLOR="1").stdout


def test_version_flag_and_version_command():
    """`--version` prints one line for scripts, `version` the details for a bug report."""
    short = hastore("--version")
    assert short.stdout.startswith("hastore ")
    long = hastore("version")
    assert "trio" in long.stdout
    assert "python" in long.stdout
    assert '"schema": "hastore.version/1"' in hastore("version", "-o", "json").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell):
    """The script asks hastore itself for completions."""
    result = hastore_here("completion", shell)
    assert result.returncode == 0
    assert "_HASTORE_COMPLETE" in result.stdout


def test_completion_offers_commands_flags_and_values():
    """The test sets the variables with which bash asks for completions."""

    def words(line: str) -> list[str]:
        parts = line.split(" ")
        done = hastore(
            _HASTORE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(parts) - 1)
        )
        return [each.partition(",")[2] for each in done.stdout.split()]

    assert words("hastore pro") == ["produce"]
    assert "--broker-role" in words("hastore master --b")
    assert words("hastore master --flush s") == ["SYNC_FLUSH", "sync"]
    assert words("hastore pipeline show re") == ["rebuild", "report", "restore"]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("hastore status D", "dir"),
        ("hastore explain D", "dir"),
        ("hastore doctor D", "dir"),
        ("hastore check D", "dir"),
        ("hastore wait D", "dir"),
        ("hastore consume orders --addr D", "dir"),
        ("hastore log info D", "dir"),
        ("hastore log repair D1 --from-replica D", "dir"),
        ("hastore pipeline run verify D1 D", "dir"),
        ("hastore pipeline run audit D", "dir"),
        ("hastore pipeline run rpo hist", "file"),
        ("hastore pipeline run import rows.jsonl --to D", "dir"),
        ("hastore produce orders lin", "file"),
    ],
)
def test_completion_offers_directories_and_files(line, kind):
    """Also for arguments that accept an address instead."""
    done = hastore_here(
        _HASTORE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(line.count(" "))
    )
    assert done.stdout.split() == [f"{kind},{line.rpartition(' ')[2]}"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_scenario_names(shell):
    """Also after other names; text that matches no scenario may be a file."""

    def completions(line):
        typed = line.rpartition(" ")[2] if shell == "fish" else str(line.count(" "))
        done = hastore_here(
            _HASTORE_COMPLETE=f"{shell}_complete", COMP_WORDS=line, COMP_CWORD=typed
        )
        return re.split("[,\\s]", done.stdout)

    assert "slave-ahead" in completions("hastore scenario run promotion slave-")
    if shell != "bash":
        return  # the names are the same
    assert "promotion" in completions("hastore scenario show pro")
    assert "promotion" not in completions("hastore scenario show sl")
    assert "file" in completions("hastore scenario run my_st")


def test_bash_completes_a_scenario_name(tmp_path):
    """An interactive bash loads the script and gets a Tab."""
    installed = Path(sys.executable).with_name("hastore")
    (tmp_path / "rc").write_text(
        f'PATH={installed.parent}:$PATH\neval "$(hastore completion bash)"\nPS1="$ "\n'
    )
    ours, theirs = pty.openpty()
    arguments = ["bash", "--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]
    with subprocess.Popen(
        arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="dumb"),
        start_new_session=True,
    ) as shell:
        os.close(theirs)
        os.write(ours, b"hastore scenario show promot\t -o json; exit\n")
        shown, deadline = b"", time.monotonic() + WITHIN_S
        while chunk := read_from(ours, deadline):
            shown += chunk
        os.close(ours)
    assert shell.returncode == 0, shown
    assert b'"name": "promotion"' in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mastr"], "did you mean master?"),
        (["xyzzy"], "No such command 'xyzzy'"),
        (["master", "--broker-rol", "x"], "--broker-role"),
        (["master", "--data", "D", "--flush"], "next  hastore master --help"),
        (["master", "--data", "D", "--listen", "1"], "'--listen': '1' is not an address"),
        (["slave", "--data", "D", "--master", "h"], "HOST:PORT, such as 127.0.0.1:10912"),
        (["slave", "--data", "D"], "set --master H:HAPORT"),
        (["produce"], "Missing argument 'TOPIC'"),
        (["produce", "or ders!"], "' ' '!'"),
        (["produce", "t", "--size", "9Q"], "not a size"),
        (["produce", "t", "-n", "0"], "-n"),
        (["produce", "t", "file", "--size", "1"], "generated"),
        (["produce", "t", "-k", "a\x01b"], "cannot be printed"),
        (["produce", "t", "-n", "1", "--addr", "nowhere"], "nowhere: no such directory"),
        (["produce", "t", "no/such/file"], "no/such/file"),
        (["status", "nowhere"], "nowhere: no such directory"),
        (["status", "localhost"], "'localhost' is not an address: write HOST:PORT"),
        (["status", "pyproject.toml"], "pyproject.toml: a file, not a directory"),
        (["doctor", "no/such/dir"], "no/such/dir: no such directory"),
        (["topic", "list", "--addr", "127.0.0.1"], "write HOST:PORT"),
        (["status", "127.0.0.1:0"], "port 0"),
        (["status", "D1", "-w", "soon"], "not a time"),
        (["status", "-w", "0"], "between"),
        (["completion", "tcsh"], "tcsh"),
        (["scenario", "run"], "--all"),
        (["scenario", "show", "nothing"], "nothing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_2(arguments, message, capsys, monkeypatch):
    """Every usage error names the mistake and a next step."""
    monkeypatch.chdir(REPO_ROOT)
    for name in list(os.environ):
        if name.startswith("HASTORE_"):
            monkeypatch.delenv(name)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert is_one_line_with_a_next_step(captured.err)
    assert message in captured.err


def test_no_command_prints_help():
    """`hastore` alone lists the commands and exits with 2."""
    done = hastore_here()
    assert done.returncode == 2
    assert "Run nodes" in done.stdout + done.stderr


def test_first_hastore_error_of_a_group_is_reported(capsys):
    """Nested exception groups are searched, and other errors in them are ignored."""
    inner = ExceptionGroup("", [ValueError("a"), FlushFailedError("disk gone", path="p")])
    assert report(BaseExceptionGroup("", [KeyboardInterrupt(), inner])) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: disk gone\n  next  ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ListenError("x"), 1),
        (StoreLockedError("x", path="p", hint="h"), 6),
        (DiskError("x", path="p"), 1),
        (click.UsageError("x"), 2),
        (PermissionError(13, "Permission denied", "f"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_error_class_decides_the_exit_code(error, code, capsys):
    """The error line appears without a traceback."""
    assert report(error) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_error_of_two_lines_is_printed_on_one(capsys):
    """Line breaks and escapes in a peer's text do not reach the terminal."""
    report(ListenError("a\nb\x1b[31m", hint="c\nd"))
    assert capsys.readouterr().err == "error: a b\\x1b[31m\n  next  c d\n"


def test_hastore_debug_shows_the_traceback(capsys, monkeypatch):
    """HASTORE_DEBUG=1 prints it with the error line."""
    monkeypatch.setenv("HASTORE_DEBUG", "1")
    report(ListenError("x"))
    assert "ListenError" in capsys.readouterr().err


def test_interrupt_exits_130_without_a_message(capsys):
    """Ctrl-C raises KeyboardInterrupt or click's Abort."""
    assert report(KeyboardInterrupt()) == 130
    assert report(click.Abort()) == 130
    assert capsys.readouterr().err == ""


def test_collapsed_raises_the_main_error_of_a_group():
    """An error outside a group is left unchanged."""
    with pytest.raises(ListenError), collapsed():
        raise ExceptionGroup("", [ListenError("x")])
    with pytest.raises(ValueError, match="y"), collapsed():
        raise ValueError("y")
    assert isinstance(main_error(ExceptionGroup("", [ValueError("z")])), ValueError)


def test_closed_stdin_and_stderr_are_no_error():
    """A command without them still exits with its own code."""
    shell = f"{sys.executable} -m hastore_cli version <&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], check=False, capture_output=True).returncode == 0
    shell = f"{sys.executable} -m hastore_cli produce t --addr 127.0.0.1:1 <&-"
    done = subprocess.run(["sh", "-c", shell], check=False, capture_output=True)
    assert done.returncode == 2
    assert b"stdin is closed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "closed", "code"),
    [
        ("version", ">&-", 1),
        ("--help", "<&- >&-", 1),
        ("scenario list -o json", "1</dev/null", 1),
        ("check 127.0.0.1:1", ">&-", 3),
    ],
)
def test_data_for_a_closed_stdout_is_an_error(arguments, closed, code):
    """As of any tool: a script must not take the silence for an empty answer."""
    shell = f"{sys.executable} -m hastore_cli {arguments} {closed}"
    done = subprocess.run(["sh", "-c", shell], check=False, stderr=subprocess.PIPE, text=True)
    assert done.returncode == code
    assert done.stderr.startswith("error: standard output is closed")
    assert is_one_line_with_a_next_step(done.stderr)


def test_full_disk_on_stdout_is_one_line_with_a_next_step():
    """As in `hastore … > /dev/full`."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hastore_cli", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device")
    assert is_one_line_with_a_next_step(done.stderr)


def test_closed_pipe_on_stdout_prints_no_error():
    """As in `hastore … | head`; the exit code is 141."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "hastore_cli", "version"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""


def test_help_examples_fit_80_columns():
    """Each example can be copied from the help as one line."""

    def examples_of(command):
        context = click.Context(command)
        if isinstance(command, click.Group):
            yield from command._examples
            for name in command.list_commands(context):
                yield from examples_of(command.get_command(context, name))
        else:
            yield from getattr(command, "examples", ())

    examples = list(examples_of(root))
    assert len(examples) > 50
    assert [each for each in examples if len(f"   {each}") > 80] == []
