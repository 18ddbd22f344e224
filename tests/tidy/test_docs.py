"""The documents match the code: their examples run, their tables are complete."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from hastore.status import PutMessageStatus
from hastore.store import node_identity
from hastore.store.record import message_codec, record_check
from hastore.store.sync_state_file import StoredSet
from hastore_cli import main
from hastore_cli.lab import sim_commands
from tests.patience import PROCESS_WITHIN_S
from tests.support.repository import REPO_ROOT, blocks, files
from tests.tidy.folder_tree import PAGE, page_with_tree


def test_the_architecture_page_has_the_tree_of_folders() -> None:
    """Every folder of the packages is there, with the first sentence of its docstring."""
    assert PAGE.read_text() == page_with_tree(), "python -m tests.tidy.folder_tree writes it"


def test_each_folder_says_where_to_begin() -> None:
    """The docstring of each `__init__.py` says "begin with" and the name of a module inside."""
    lost = []
    for file in files():
        name = str(file.relative_to(REPO_ROOT))
        if file.name != "__init__.py" or not name.startswith(("cli/", "hastore/", "scenarios/")):
            continue
        docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
        first = re.findall(r"[Bb]egin\s+with\s+``([\w.]+)``", docstring)
        place = file.parent / first[0].replace(".", "/") if first else None
        if place is None or not (place.is_dir() or place.with_suffix(".py").is_file()):
            lost.append(name)
    assert not lost


def test_the_architecture_page_names_existing_modules() -> None:
    """A `folder/module` on the page is relative to hastore/ or to the root."""
    named = set(re.findall(r"`([a-z]\w*(?:/\w+)+)`", PAGE.read_text()))
    assert len(named) > 20
    places = (REPO_ROOT, REPO_ROOT / "hastore")
    lost = [
        name
        for name in named
        if not any((each / name).is_dir() or (each / f"{name}.py").is_file() for each in places)
    ]
    assert not lost


def test_the_contributing_page_names_existing_files() -> None:
    """Its recipes name Python files by their paths."""
    text = (REPO_ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+[a-z_]+\.py)`", text))
    assert len(named) > 10
    assert [name for name in named if not (REPO_ROOT / name).is_file()] == []


def test_the_formats_page_shows_a_record_that_the_codec_accepts() -> None:
    """The example decodes to the values beside it, and encodes to the same bytes."""
    (block,) = blocks("docs/formats.md", "record")
    record = b"".join(
        bytes.fromhex(match[1])
        for line in block.splitlines()
        if (match := re.match(r"((?:[0-9a-f]{2} +)+)", line))
    )
    message = message_codec.decode(record)
    assert message_codec.encode(message) == record
    assert (message.topic, message.body, message.properties["TAGS"]) == ("orders", b"hi", "paid")
    assert (message.total_size, message.physic_offset) == (129, 1000)
    assert message.body_crc == record_check.body_crc32(b"hi")
    check = record_check.check_record(record, 0, len(record), 1000)
    assert check.kind is record_check.RecordKind.MESSAGE
    assert check.has_prop_crc
    message_id = message_codec.message_id(message.store_host, message.physic_offset)
    assert message_id in (REPO_ROOT / "docs/formats.md").read_text()


def test_the_formats_page_shows_an_identity_that_the_codec_accepts() -> None:
    """And that it would write so."""
    block, *_ = blocks("docs/formats.md", "json")
    identity = node_identity.decode_identity(block.encode())
    assert isinstance(identity, node_identity.Identity), identity
    assert node_identity.encode_identity(identity) == block.encode()


def test_the_formats_page_shows_a_sync_state_set_that_the_codec_accepts() -> None:
    """And that it would write so."""
    _, block, *_ = blocks("docs/formats.md", "json")
    stored = StoredSet.decode(block.encode())
    assert isinstance(stored, StoredSet), stored
    assert stored.encode() == block.encode()


def test_the_readme_lists_every_status_and_whether_it_is_stored() -> None:
    """The table's second column is `PutMessageStatus.stored`."""
    text = (REPO_ROOT / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (yes|no|unknown) \|", text, re.MULTILINE))
    assert set(rows) == {status.value for status in PutMessageStatus}
    for status in PutMessageStatus:
        assert (rows[status.value] == "yes") == status.stored, status


def test_the_readme_has_a_row_for_every_command() -> None:
    """Only commands of the panel `Other`, such as `version`, need no row."""
    text = (REPO_ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (`hastore .*?) \|", text, re.MULTILINE)
    listed = {word for row in rows for word in re.findall(r"`(?:hastore )?([a-z]+)", row)}
    panels = dict(main._PANELS)
    wanted = {name for panel, names in panels.items() if panel != "Other" for name in names}
    assert not wanted - listed


def test_the_testing_page_says_how_many_seeds_sim_run_shrinks() -> None:
    """The number is the constant that `sim run` uses."""
    text = (REPO_ROOT / "docs/testing.md").read_text()
    assert f"for the first {sim_commands._SHRUNK_MAX} also their story" in " ".join(text.split())


def test_the_testing_page_has_a_row_for_every_folder_of_tests() -> None:
    """A folder that the table names exists, too."""
    table = (REPO_ROOT / "docs/testing.md").read_text().partition("| folder | what it tests |")[2]
    rows = re.findall(r"^\| ((?:`tests/\w+`(?:, )?)+) \|", table, re.MULTILINE)
    named = sorted(name for row in rows for name in re.findall(r"`tests/(\w+)`", row))
    assert named == sorted(path.parent.name for path in (REPO_ROOT / "tests").glob("*/__init__.py"))


def test_the_readmes_python_example_runs(tmp_path: Path) -> None:
    """Only its directory, file size and port are replaced."""
    (block,) = blocks("README.md", "python")
    code = block
    changes = {'"D3"': repr(str(tmp_path / "D3")), "64 * 2**20": "65536", "10922": "0"}
    for given, own in changes.items():
        assert code.count(given) == 1
        code = code.replace(given, own)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PROCESS_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A SYNC_MASTER without a slave stores the message and reports this status.
    assert done.stdout.count("SLAVE_NOT_AVAILABLE") == 2


def test_documents_name_only_existing_make_targets() -> None:
    """This covers every `make TARGET` in a Markdown file."""
    targets = set(
        re.findall(r"^([a-z-]+):.*## ", (REPO_ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    for document in [*REPO_ROOT.glob("*.md"), *(REPO_ROOT / "docs").glob("*.md")]:
        named = re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(), re.MULTILINE)
        assert set(named) <= targets, document


def test_a_master_accepts_the_configuration_example(tmp_path: Path) -> None:
    """The TOML on the command-line page is a complete configuration."""
    (block,) = blocks("docs/cli.md", "toml")
    file = tmp_path / "hastore.toml"
    file.write_text(block)
    command = [sys.executable, "-m", "hastore_cli", "master", "-c", str(file), "--check-config"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'data = "/var/lib/hastore/a"' in done.stdout
