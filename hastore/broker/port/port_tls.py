"""What a client port takes: plain bytes, TLS, or either; the first byte of a connection decides.

::

    0x16  ...            a TLS handshake
    0x00  ...            a remoting frame: its length, for any size that is allowed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import TlsError
from hastore.status import TlsMode
from hastore.tls.tls_calls import tls_calls
from hastore.tls.tls_fault import TlsFault

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.tls.tls_contexts import TlsContexts

HANDSHAKE: Final = b"\x16"


@final
@attrs.frozen(eq=False)
class PortTls:
    """How the connections of a port that takes TLS begin."""

    contexts: TlsContexts
    takes_plain: bool
    env: Env
    calls: Env  # its socket calls are for connections with TLS

    @classmethod
    def of(cls, contexts: TlsContexts | None, env: Env) -> PortTls | None:
        """Return it for a node; None: its port takes plain bytes only."""
        if contexts is None or contexts.config.mode is TlsMode.DISABLED:
            return None
        is_permissive = contexts.config.mode is TlsMode.PERMISSIVE
        return cls(contexts, is_permissive, env, tls_calls(env))

    def is_tls(self, first: bytes) -> bool:
        """Whether a connection that begins with this byte is TLS.

        Raises TlsError for a plain one that is not taken.
        """
        if first == HANDSHAKE:
            return True
        if self.takes_plain:
            return False
        raise TlsError(
            "plain bytes, and this port takes TLS only ([tls] mode)", fault=TlsFault.PLAIN_TEXT
        )


def tls_on_a_plain_port() -> TlsError:
    """Return the error for a handshake at a port that takes plain bytes only."""
    return TlsError(
        "a TLS handshake, and this port takes plain bytes only ([tls] mode)",
        fault=TlsFault.OTHER,
    )
