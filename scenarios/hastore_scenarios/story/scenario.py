"""A scenario: an async function of one `World` with a decorator.

::

    @scenario(number=1, title="A sync put", proves="PUT_OK means that a slave has it")
    async def sync_put(world: World) -> None: ...

Its name is the function's with dashes.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from hastore_scenarios.story.world import World

    ScenarioFunction = Callable[[World], Awaitable[None]]

_ATTRIBUTE: Final = "__hastore_scenario__"


@attrs.frozen(kw_only=True)
class Scenario:
    """One story: its names, what it proves, and its function."""

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
    """Return a decorator that makes an async function of a `World` a scenario."""

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
    """Raise TypeError, at the decorator's line, for a function that is not a story."""
    name = getattr(function, "__name__", "scenario")
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise TypeError(f"{name} is not a story: write async def {name}(world)")
    try:
        inspect.signature(function).bind("world")
    except TypeError as error:
        raise TypeError(f"{name} must take the world as its only argument: {error}") from None


def scenarios_in(module: ModuleType) -> list[Scenario]:
    """Return the scenarios that a module defines, in its order."""
    return [
        getattr(value, _ATTRIBUTE)
        for value in vars(module).values()
        if hasattr(value, _ATTRIBUTE) and getattr(value, "__module__", "") == module.__name__
    ]
