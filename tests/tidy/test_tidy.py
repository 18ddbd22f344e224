"""Tests about the code itself, after TigerBeetle's tidy: the house rules that no linter knows."""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hastore.sim.seams import TRIO_MINOR
from tests.support.repository import PACKAGES, REPO_ROOT, files

# In one worker the files are parsed once.
pytestmark = pytest.mark.xdist_group("tidy")
FOLDERS = tuple(f"{folder}/" for folder in (*PACKAGES, "tests"))
TEST_MODULE = re.compile(r"tests\.(\w+\.)*test_\w+$")
# Written in halves, so that this file does not name them.
MACHINE_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/opt/" + "pypi", "/opt/" + "wheels")
REGISTRY_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "deb" + ".debian.org",
    "extra-" + "index-url",
)


# Each rule yields the places in a file that break it.
Rule = Callable[[str, ast.Module], Iterator[str]]


def no_docstring(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield a module without a docstring."""
    if not ast.get_docstring(tree):
        yield name


def code_in_init(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield statements of an `__init__.py` that are code."""

    def allowed(node: ast.stmt) -> bool:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                return True
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return True
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
                return all(allowed(inner) for inner in node.body)
        return False

    if name.endswith("__init__.py"):
        yield from (f"{name}:{node.lineno}" for node in tree.body if not allowed(node))


def silent_test(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield tests without a docstring."""
    if name.startswith("tests/") and Path(name).name.startswith("test_"):
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=test) | ast.AsyncFunctionDef(name=test):
                    if test.startswith("test_") and not ast.get_docstring(node):
                        yield f"{name}:{node.lineno} {test}"


def imported_test(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield imports of modules of tests by tests."""
    if name.startswith("tests/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and TEST_MODULE.match(str(node.module)):
                yield f"{name}:{node.lineno} {node.module}"


@functools.cache
def broken_rules() -> dict[Rule, list[str]]:
    """Return the places that break each rule; each Python file is parsed once for all of them."""
    found: dict[Rule, list[str]] = {
        rule: [] for rule in (no_docstring, code_in_init, silent_test, imported_test)
    }
    for path in files():
        name = str(path.relative_to(REPO_ROOT))
        if path.suffix == ".py" and name.startswith(FOLDERS):
            tree = ast.parse(path.read_text())
            for rule, places in found.items():
                places.extend(rule(name, tree))
    return found


def test_every_module_has_a_docstring() -> None:
    """This includes tests and `__init__.py`."""
    assert not broken_rules()[no_docstring]


def test_init_files_hold_no_code() -> None:
    """An `__init__.py` may hold a docstring, imports and `__all__`."""
    assert not broken_rules()[code_in_init]


def test_every_test_has_a_docstring() -> None:
    """Methods and inner functions count, too."""
    assert not broken_rules()[silent_test]


def test_no_test_module_is_imported_by_another() -> None:
    """What several of them need is in a module of helpers beside them, or in tests/support."""
    assert not broken_rules()[imported_test]


def test_files_name_no_machine_and_no_registry() -> None:
    """Paths of a developer's machine and hosts of package registries do not belong in a file."""
    named = []
    for path in files():
        text = path.read_bytes().decode(errors="replace")
        named += [
            f"{path.relative_to(REPO_ROOT)}: {word}"
            for word in (*MACHINE_PATHS, *REGISTRY_HOSTS)
            if word in text
        ]
    assert not named


def test_links_between_documents_have_targets() -> None:
    """A relative link in a Markdown file names an existing file, and an existing heading in it."""

    def anchors(path: Path) -> set[str]:
        heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    broken = []
    for path in files():
        if path.suffix != ".md":
            continue
        for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", path.read_text()):
            target, _, anchor = link.partition("#")
            linked = path.parent / target if target else path
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{path.relative_to(REPO_ROOT)}: {link}")
    assert not broken


def test_words_that_the_glossary_replaces_are_not_used() -> None:
    """Documents, code and comments avoid those that have no other meaning here."""
    words = re.compile(r"\b(anew|lent|parted(?!-logs)|strangers?|whoever)\b")
    exempt = {REPO_ROOT / "docs/glossary.md", Path(__file__)}
    used = [
        f"{path.relative_to(REPO_ROOT)}: {word}"
        for path in files()
        if path.suffix in {".md", ".py", ".sh", ".toml"} or path.name == "Makefile"
        if path not in exempt
        for word in words.findall(path.read_text())
    ]
    assert not used


def test_lock_files_pin_every_package_by_hash() -> None:
    """Each requirement in a lock file is one exact version with at least one hash."""
    for lock in sorted((REPO_ROOT / "requirements").glob("*.lock")):
        logical_lines = lock.read_text().replace("\\\n", " ").splitlines()
        pins = [
            line for line in logical_lines if line.strip() and not line.lstrip().startswith("#")
        ]
        assert pins, lock.name
        for pin in pins:
            assert re.match(r"[a-z0-9.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", pin), (lock.name, pin)


def test_the_locked_trio_is_that_of_recorded_seeds() -> None:
    """Users may have a later one; the tests' seeds are runs with the scheduler of this one."""
    for lock in sorted((REPO_ROOT / "requirements").glob("*.lock")):
        assert f"\ntrio=={TRIO_MINOR}." in lock.read_text(), lock.name


# Who writes to the terminal, and why beside a console of ``EscapingConsole``.
_PRINTERS = {
    "cli/hastore_cli/app/terminal.py": "the commands' way out: it escapes all texts",
    "cli/hastore_cli/app/interpreter.py": "a number that its parent process reads",
    "cli/hastore_cli/messages/printer.py": "many messages a flush; their fields are escaped",
    "scenarios/hastore_scenarios/demo/command.py": "a fixed text, before anything is imported",
    "hastore/testing/node_main.py": "one line, escaped, to the process that has started it",
}
_PRINTING = re.compile(
    r"\bprint\(|click\.(?:s?echo|style|unstyle)\(|\.print_exc|std(?:out|err)\.(?:write|buffer)"
    r"|rich\.print|(?<!\w)Console\(|os\.write\((?:1|2|sys)"
)


def test_everything_is_printed_by_a_way_that_escapes() -> None:
    """A text of a node or a file could move the cursor; forgetting to escape it is impossible."""
    roots = ("cli", "hastore", "scenarios", "pytest_hastore", "pyspark_hastore")
    found = [
        f"{path.relative_to(REPO_ROOT)}:{number}: {line.strip()}"
        for root in roots
        for path in sorted((REPO_ROOT / root).rglob("*.py"))
        if str(path.relative_to(REPO_ROOT)) not in _PRINTERS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _PRINTING.search(line) and "console.print(" not in line and "().print(" not in line
    ]
    ways = "hastore_cli.app.terminal (commands) or an EscapingConsole (the demo)"
    assert not found, f"print by {ways}:\n" + "\n".join(found)
