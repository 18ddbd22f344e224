"""A broken rule of a simulated run, and what ends a run that no rule is for."""

from __future__ import annotations


class ViolationError(AssertionError):
    """A rule is broken; ``name`` is the rule's, ``put`` the number of the put concerned."""

    def __init__(self, name: str, detail: str, put: int | None = None) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail
        self.put = put

    def __reduce__(self) -> tuple[type[ViolationError], tuple[str, str, int | None]]:
        """Make it picklable, to be passed between processes."""
        return ViolationError, (self.name, self.detail, self.put)


class UnpromisedError(ViolationError):
    """A run has come to where nothing is promised (docs/failover.md): it ends there, and passes."""
