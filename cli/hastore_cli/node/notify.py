"""Tells systemd, or what speaks its protocol, how far a node is: sd_notify(3).

::

    NOTIFY_SOCKET=/run/…  or  @abstract       one datagram of NAME=VALUE lines

A node that nobody listens to says nothing, and a listener that has gone is no error.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "NOTIFY_SOCKET"
_log = logger("cli")


def notify(environ: Mapping[str, str] = os.environ, **values: str) -> None:
    """Send ``values``, such as ``READY="1"``, if the environment names a socket."""
    path = environ.get(VARIABLE, "")
    if not path.startswith(("/", "@")):
        return
    lines = "".join(f"{name}={' '.join(value.splitlines())}\n" for name, value in values.items())
    address = f"\0{path[1:]}" if path.startswith("@") else path
    flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    try:
        with socket.socket(socket.AF_UNIX, flags) as sock:
            sock.sendto(lines.encode(), address)
    except OSError as error:
        _log.debug("not_notified", socket=path, reason=str(error))
