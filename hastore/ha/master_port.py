"""Checks that ``--master`` names an HA port, and asks the master's client port for its file size.

The HA protocol carries neither.  The client port is expected one below the HA port, RocketMQ's and
hastore's default; its answer counts only if it names this HA port as its own.  Without
``ask_client_port`` nothing is checked or asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.tcp import describe
from hastore.errors import FileSizeMismatchError, WrongPortError
from hastore.ha.client_port import PortKind
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import SlaveConfig
    from hastore.ha.client_port import AskClientPort, ClientPort
    from hastore.store.commit_log import CommitLog

# A client port closes at once on bytes that are no request; a RocketMQ master that refuses a log
# closes at the second report, after 5 s.
CLOSED_AT_ONCE_S: Final = 3.0
_CHECKS_MAX: Final = 3
# A master listens for slaves a moment before it listens for clients.  It is asked again only once:
# a hastore master closes a link without a report after 10 s.
_ASK_AGAIN_S: Final = 1.0
_SIZE_LINKS_MAX: Final = 2  # another master may close earlier; then its file size stays unknown
_HTTP: Final = b"HTTP/"

_log = logger("ha")


@final
@attrs.define(eq=False)
class MasterPort:
    """The port that ``--master`` names, and the client port one below."""

    config: SlaveConfig
    commit_log: CommitLog
    ask_client_port: AskClientPort | None
    _checks: int = attrs.field(default=0, init=False)
    _size_links: int = attrs.field(default=0, init=False)  # on which the file size was asked for

    async def learn_file_size(self) -> None:
        """Set the file size of a log without files to the master's.

        Raises FileSizeMismatchError if another size is configured.
        """
        log, chosen = self.commit_log, self.config.store.mapped_file_size
        may_ask = self.ask_client_port is not None and self._size_links < _SIZE_LINKS_MAX
        if not may_ask or log.has_files:
            return
        self._size_links += 1
        began = trio.current_time()
        found = await self._ask_master()
        if found is None and chosen is None and trio.current_time() - began < _ASK_AGAIN_S:
            await trio.sleep(_ASK_AGAIN_S)
            found = await self._ask_master()
        if found is None or found.mapped_file_size in {None, log.file_size}:
            return
        size = found.mapped_file_size
        assert size is not None
        if chosen is not None:
            raise FileSizeMismatchError(
                f"this slave's files are to have {chosen} bytes, those of master"
                f" {describe(self.config.master)} have {size}",
                path=log.path,
                size_found=size,
                size_wanted=chosen,
                hint=f"--mapped-file-size {size}, or none: a new slave uses its master's",
            )
        log.choose_file_size(size)
        _log.info("masters_file_size_taken", file_size=size, master=describe(self.config.master))

    async def masters_end(self) -> int | None:
        """Return the end of the master's log; None if unknown."""
        found = await self._ask_master()
        return None if found is None else found.max_offset

    async def _ask_master(self) -> ClientPort | None:
        host, ha_port = self.config.master
        if self.ask_client_port is None or ha_port <= 1:
            return None
        found = await self.ask_client_port((host, ha_port - 1))
        return found if found is not None and found.ha_port == ha_port else None

    # -- is it an HA port at all? ----------------------------------------------------------------

    def check_first_bytes(self, data: memoryview) -> None:
        """Raise WrongPortError for the answer of a web server."""
        if self.ask_client_port is not None and bytes(data[: len(_HTTP)]) == _HTTP:
            msg = f"{describe(self.config.master)} speaks HTTP: it is not a master's HA port"
            raise WrongPortError(msg, hint=_HINT)

    async def check_closed_link(self, lasted_s: float) -> None:
        """Ask whether a port that closed an unused link is a client port.

        Raises WrongPortError if it is.  Asks a few times at most.
        """
        may_ask = self.ask_client_port is not None and self._checks < _CHECKS_MAX
        if not may_ask or lasted_s > CLOSED_AT_ONCE_S:
            return
        self._checks += 1
        assert self.ask_client_port is not None
        found = await self.ask_client_port(self.config.master)
        if found is not None:
            raise wrong_port(self.config.master, found)


_HINT: Final = "give a master's HA port, by default 10912: hastore slave --master HOST:10912"


def wrong_port(address: tuple[str, int], found: ClientPort) -> WrongPortError:
    """Return the error that says what ``address`` is, with the port that was meant if known."""
    named, (host, port) = describe(address), address
    if found.kind is PortKind.NAME_SERVER:
        return WrongPortError(f"{named} is a name server, not a master", hint=_HINT)
    if found.master is not None:
        return WrongPortError(
            f"{named} is the client port of a slave, and a slave has no HA port",
            hint=f"give its master's: hastore slave --master {found.master}",
        )
    if found.ha_port == port:  # ports are mapped in between
        return WrongPortError(
            f"{named} leads to a client port; its master listens for slaves on port {port} itself",
            hint="map a port to the master's HA port, and give that one to --master",
        )
    if found.ha_port is not None:
        said, ha_port = f"the HA port is {found.ha_port}", found.ha_port
    else:
        said, ha_port = f"the HA port is usually {port + 1}", port + 1
    return WrongPortError(
        f"{named} is the client port; {said}",
        hint=f"hastore slave --master {describe((host, ha_port))}",
    )
