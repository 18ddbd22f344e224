"""All scenarios by name: those of the catalog, and those of a user's file."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from difflib import get_close_matches
from pathlib import Path

from hastore.errors import ConfigError
from hastore_scenarios import catalog
from hastore_scenarios.story.scenario import Scenario, scenarios_in


def all_scenarios() -> tuple[Scenario, ...]:
    """Return the catalog in its order."""
    found = []
    for module_info in pkgutil.iter_modules(catalog.__path__):
        module = importlib.import_module(f"{catalog.__name__}.{module_info.name}")
        found.extend(scenarios_in(module))
    return tuple(sorted(found, key=lambda each: (each.number, each.name)))


def find(name_or_file: str) -> tuple[Scenario, ...]:
    """Return the scenario of that name or number, or all of a Python file.

    Raises ConfigError if there is none.
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
    found = tuple(scenarios_in(module))
    if not found:
        raise ConfigError(
            f"{path} holds no scenario",
            hint="put @scenario(title=…, proves=…) on an async function",
        )
    return found
