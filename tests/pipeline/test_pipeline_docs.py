"""The pipeline's page names the columns, options, jobs and flags that exist."""

import re
import shlex

import pytest

pytest.importorskip("pyspark")

from hastore.columnar.log_schema import COLUMNS
from hastore.pipeline.source import options
from hastore_cli.main import main
from hastore_cli.pipeline.commands import _JOBS
from tests.support.repository import REPO_ROOT

PAGE = "docs/pipeline.md"


def first_cells(head):
    """Return the names in the first column of the table that begins with ``head``."""
    text = (REPO_ROOT / PAGE).read_text()
    table = text[text.index(head) :].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_page_lists_the_columns_of_the_table():
    """It has all of them, each once."""
    assert sorted(first_cells("| column |")) == sorted(COLUMNS)


def test_page_lists_the_options_of_the_source():
    """Those of streams are in a separate section."""
    named = set(first_cells("| option |"))
    of_streams = {"startingOffset", "maxBytesPerTrigger", "failOnDataLoss"}
    assert named | of_streams | {"path", "paths"} == set(options._NAMES)
    text = (REPO_ROOT / PAGE).read_text()
    assert all(name in text[text.index("## Streams") :] for name in of_streams)


def test_every_job_has_a_section():
    """Its heading has the name of the job."""
    headings = " ".join(re.findall(r"^### (.*):", (REPO_ROOT / PAGE).read_text(), re.MULTILINE))
    assert set(re.findall(r"\w+", headings)) == set(_JOBS)


def test_commands_have_the_flags_in_the_examples(capsys):
    """They are in the --help of the command."""
    text = (REPO_ROOT / PAGE).read_text()
    shown = re.findall(r"^(?:\$ )?hastore (pipeline .*)$", text, re.MULTILINE)
    assert len(shown) > 15
    helps = {}
    for line in shown:
        words = shlex.split(line.partition("   #")[0].partition(" | ")[0])
        name = words[:3] if words[1] == "run" else words[:2]
        if tuple(name) not in helps:
            assert main([*name, "--help"]) == 0
            helps[tuple(name)] = capsys.readouterr().out
        flags = {word for word in words if word.startswith("-")}
        missing = {flag for flag in flags if flag not in helps[tuple(name)]}
        assert not missing, line
