"""A permissions file, its keys, and nodes that use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.access.key_file import key_text
from hastore.access.secret import Secret
from hastore.access.signature import AccessKey, RequestSigner, signed_fields
from hastore.wire.remoting_command import RemotingCommand
from tests.support.planted_secrets import PLANTED, plant

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.nodes.raw_client import RawClient

# Found in no output: tests.secret_watch looks for it.
SECRET: Final = f"{PLANTED}-7f3a"
ADMIN_KEY: Final = AccessKey("the-admin", Secret(f"{SECRET}-admin"))
# On topic orders and group billing.
USER_KEY: Final = AccessKey("the-user", Secret(f"{SECRET}-user"))
# Nothing.
POOR_KEY: Final = AccessKey("the-poor", Secret(f"{SECRET}-poor"))
UNKNOWN_KEY: Final = AccessKey("unknown-key", Secret(f"{SECRET}-unknown"))
WRONG_KEY: Final = AccessKey("the-user", Secret(f"{SECRET}-wrong"))

ACCOUNTS: Final = f"""\
accounts:
- accessKey: the-admin
  secretKey: {SECRET}-admin
  admin: true
- accessKey: the-user
  secretKey: {SECRET}-user
  topicPerms: [orders=PUB|SUB]
  groupPerms: [billing=SUB]
- accessKey: the-poor
  secretKey: {SECRET}-poor
"""


def write_private(path: Path, text: str) -> str:
    """Write a file that only its owner may read, in one step; return its path."""
    plant(path, text)
    return str(path)


def write_key(path: Path, key: AccessKey) -> str:
    """Write a key file in TOML or YAML; return its path."""
    text = key_text(key)
    if path.suffix == ".yml":
        text = f"accessKey: {key.name}\nsecretKey: {key.secret.reveal()}\n"
    return write_private(path, text)


async def signer_on(client: RawClient, key: AccessKey) -> RequestSigner:
    """Return what signs requests on a connection in hastore's own way."""
    signer = RequestSigner(key)
    signer.use_nonce_of(await client.ask(signed(RemotingCommand(code=907, opaque=1), key)))
    return signer


def own_signed(request: RemotingCommand, signer: RequestSigner) -> RemotingCommand:
    """Return a request with hastore's own signature, if its code may have it."""
    fields = signer.signed(request.code, request.ext_fields, request.body)
    return attrs.evolve(request, ext_fields=fields)


def signed(request: RemotingCommand, key: AccessKey | None) -> RemotingCommand:
    """Return a request with the signature of ``key``."""
    if key is None:
        return request
    return attrs.evolve(request, ext_fields=signed_fields(key, request.ext_fields, request.body))
