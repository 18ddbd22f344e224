"""All scenarios by name: those of the catalog, and those of a file that somebody wrote.

A scenario is an async function of one `World` with a decorator::

    @scenario(number=1, title="A sync put", proves="PUT_OK means that a slave has it")
    async def sync_put(world: World) -> None: ...

Its name is the function's with dashes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import ConfigError
from hastore_scenarios import catalog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from hastore_scenarios.story.world import World

    ScenarioFunction = Callable[[World], Awaitable[None]]

_ATTRIBUTE: Final = "__hastore_scenario__"


@attrs.frozen(kw_only=True)
class Scenario:
    """One story: what it is called, what it proves, and how it goes."""

    name: str
    number: int
    title: str
    proves: str
    doc: str
    path: str
    function: ScenarioFunction = attrs.field(repr=False, eq=False)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "number": self.number,
            "title": self.title,
            "proves": self.proves,
            "doc": self.doc,
            "path": self.path,
        }


def scenario(
    *, title: str, proves: str, number: int = 0
) -> Callable[[ScenarioFunction], ScenarioFunction]:
    """Make an async function of a `World` a scenario."""

    def mark(function: ScenarioFunction) -> ScenarioFunction:
        _expect_story(function)
        setattr(
            function,
            _ATTRIBUTE,
            Scenario(
                name=getattr(function, "__name__", "scenario").replace("_", "-"),
                number=number,
                title=title,
                proves=proves,
                doc=inspect.getdoc(function) or "",
                path=inspect.getsourcefile(function) or "",
                function=function,
            ),
        )
        return function

    return mark


def _expect_story(function: ScenarioFunction) -> None:
    """Raise TypeError, at the decorator's line, for what cannot be told."""
    name = getattr(function, "__name__", "scenario")
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise TypeError(f"{name} is no story: write async def {name}(world)")
    try:
        inspect.signature(function).bind("world")
    except TypeError as error:
        raise TypeError(f"{name} is given the world and no more: {error}") from None


def all_scenarios() -> tuple[Scenario, ...]:
    """Return the catalog in its order."""
    found = []
    for module_info in pkgutil.iter_modules(catalog.__path__):
        module = importlib.import_module(f"{catalog.__name__}.{module_info.name}")
        found.extend(_scenarios_in(module))
    return tuple(sorted(found, key=lambda each: (each.number, each.name)))


def find(name_or_file: str) -> tuple[Scenario, ...]:
    """Return the scenario of that name or number, or all of a Python file.

    Raises ConfigError where there is none.
    """
    if name_or_file.endswith(".py"):
        return _load_file(Path(name_or_file))
    everything = all_scenarios()
    wanted = name_or_file.replace("_", "-")
    for each in everything:
        if wanted in {each.name, str(each.number)}:
            return (each,)
    names = [each.name for each in everything]
    near = get_close_matches(wanted, names, n=1)
    raise ConfigError(
        f"there is no scenario {name_or_file!r}" + (f"; did you mean {near[0]}?" if near else ""),
        hint="hastore scenario list" if near else "one of: " + ", ".join(names),
    )


def _load_file(path: Path) -> tuple[Scenario, ...]:
    if path.is_dir():
        msg = f"{path} is a directory"
        raise ConfigError(
            msg, hint=f"name a scenario file in it: hastore scenario run {path}/FILE.py"
        )
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="hastore scenario list")
    spec = importlib.util.spec_from_file_location(f"scenario_file_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{path} cannot be imported: {type(error).__name__}: {error}",
            hint="a scenario file is an ordinary Python module; see hastore_scenarios.catalog",
        ) from error
    found = tuple(_scenarios_in(module))
    if not found:
        raise ConfigError(
            f"{path} holds no scenario",
            hint="put @scenario(title=…, proves=…) on an async function",
        )
    return found


def _scenarios_in(module: ModuleType) -> list[Scenario]:
    return [
        getattr(value, _ATTRIBUTE)
        for value in vars(module).values()
        if hasattr(value, _ATTRIBUTE) and getattr(value, "__module__", "") == module.__name__
    ]
