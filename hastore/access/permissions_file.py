"""The permissions file: RocketMQ's plain_acl.yml, or the same keys in TOML.

::

    accounts:
      - accessKey: reader-key          # 7 characters or more, as the next
        secretKey: at-least-7
        admin: false
        defaultTopicPerm: DENY         # DENY, PUB, SUB, PUB|SUB; the default is DENY
        defaultGroupPerm: SUB
        topicPerms: [orders=SUB, audit=DENY]
        groupPerms: [billing=SUB]
        allowedRemoteAddresses: [10.0.0.0/8]    # hastore's own: elsewhere the key does not count

RocketMQ's white addresses let requests pass without a signature: behind a NAT or a proxy those of
everybody.  A file that has any is refused.

Invariant: a file is read whole, or a ConfigError names the file, the place and the next step; no
error has a secret.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from hastore.access.permissions import DENY, PUB, SUB, Account, Permission, PermissionTable
from hastore.access.secret import Secret
from hastore.access.secret_file import Item, Reader, parse_table
from hastore.access.signature import AccessKey
from hastore.topic import RETRY_TOPIC_PREFIX, check_group, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.access.permissions import Network

KEY_SIZE_MIN: Final = 7  # characters, RocketMQ's
KEY_SIZE_MAX: Final = 255
SECRET_SIZE_MAX: Final = 1024
ACCOUNTS_MAX: Final = 10_000
_GLOBAL_WHITE: Final = "globalWhiteRemoteAddresses"
_WHITE: Final = "whiteRemoteAddress"
_FILE_KEYS: Final = ("accounts", _GLOBAL_WHITE, "dataVersion")  # the last: RocketMQ's own notes
_ACCOUNT_KEYS: Final = (
    "accessKey",
    "secretKey",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
    "allowedRemoteAddresses",
    _WHITE,
)
_PERMISSIONS: Final = {
    "DENY": DENY,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}
_PERMISSION_HINT: Final = "write DENY, PUB, SUB or PUB|SUB"


def parse_permissions(data: bytes, path: str) -> PermissionTable:
    """Return the accounts in a file's bytes.  Raises ConfigError."""
    table, reader = parse_table(data, path), Reader(path)
    reader.check_keys(table, _FILE_KEYS)
    _refuse_white(reader, table, _GLOBAL_WHITE)
    rows = table.get("accounts")
    if rows is None or not rows.value:
        raise reader.fault("accounts", "there is no account", "nobody could do anything: add one")
    if not isinstance(rows.value, list) or not all(isinstance(r.value, dict) for r in rows.value):
        raise reader.fault(rows.place, "accounts is not a list of tables", "- accessKey: NAME")
    if len(rows.value) > ACCOUNTS_MAX:
        raise reader.fault(
            rows.place, f"{len(rows.value)} accounts", f"at most {ACCOUNTS_MAX} are taken"
        )
    accounts: dict[str, Account] = {}
    places: dict[str, str] = {}
    for row in rows.value:
        account = _account(reader, row)
        name = account.key.name
        if name in accounts:
            raise reader.fault(
                row.place,
                f"access key {name} has an account already, at {places[name]}",
                "remove one of them",
            )
        accounts[name], places[name] = account, row.place
    return PermissionTable(accounts)


def read_access_key(reader: Reader, table: Mapping[str, Item], place: str) -> AccessKey:
    """Return the key in a table.  Raises ConfigError."""
    name, name_place = reader.required_text(table, "accessKey", place)
    secret, secret_place = reader.required_text(table, "secretKey", place)
    for what, text, where, size_max in (
        ("accessKey", name, name_place, KEY_SIZE_MAX),
        ("secretKey", secret, secret_place, SECRET_SIZE_MAX),
    ):
        if not KEY_SIZE_MIN <= len(text) <= size_max:
            raise reader.fault(
                where,
                f"{what} has {len(text)} characters, not {KEY_SIZE_MIN} to {size_max}",
                "hastore acl keygen makes one",
            )
        if not text.isprintable() or " " in text:
            raise reader.fault(
                where, f"{what} has a space or a control character", "use letters and digits"
            )
    if name == secret:
        raise reader.fault(
            secret_place, "secretKey is the accessKey, which is no secret", "use another one"
        )
    return AccessKey(name, Secret(secret))


def _account(reader: Reader, row: Item) -> Account:
    table = row.value
    reader.check_keys(table, _ACCOUNT_KEYS)
    _refuse_white(reader, table, _WHITE)
    key = read_access_key(reader, table, row.place)
    topics = _named(reader, table, "topicPerms", check_topic)
    groups = _named(reader, table, "groupPerms", check_group)
    for topic in [topic for topic in topics if topic.startswith(RETRY_TOPIC_PREFIX)]:
        # How RocketMQ keeps the permission of a group.
        groups.setdefault(topic.removeprefix(RETRY_TOPIC_PREFIX), topics.pop(topic))
    return Account(
        key=key,
        is_admin=reader.flag(table, "admin"),
        default_topic=_default(reader, table, "defaultTopicPerm"),
        default_group=_default(reader, table, "defaultGroupPerm"),
        topics=topics,
        groups=groups,
        networks=_networks(reader, table),
    )


def _refuse_white(reader: Reader, table: Mapping[str, Item], key: str) -> None:
    item = table.get(key)
    if item is not None and item.value:
        raise reader.fault(
            item.place,
            f"{key} would let requests pass without a signature, behind a NAT or a proxy those of"
            " everybody: hastore has no such thing",
            "remove it, and give its clients a key; allowedRemoteAddresses limits where a key"
            " counts",
        )


def _permission(reader: Reader, text: str, place: str, what: str) -> Permission:
    found = _PERMISSIONS.get(text.replace(" ", "").upper())
    if found is None:
        raise reader.fault(place, f"{what} is not a permission", _PERMISSION_HINT)
    return found


def _default(reader: Reader, table: Mapping[str, Item], key: str) -> Permission:
    text = reader.text(table, key)
    return DENY if text is None else _permission(reader, text, table[key].place, key)


def _named(
    reader: Reader, table: Mapping[str, Item], key: str, check: Callable[[str], str]
) -> dict[str, Permission]:
    """Return the permissions of ``[orders=PUB|SUB, audit=DENY]`` by name."""
    found: dict[str, Permission] = {}
    for text, place in reader.texts(table, key):
        name, separator, permission = text.partition("=")
        name = name.strip()
        if not separator:
            raise reader.fault(place, f"an entry of {key} has no =", "write NAME=PUB|SUB")
        reader.parsed(
            place,
            f"{name[:64]!a} in {key} can be no such name",
            "use the name of a topic or group",
            lambda name=name: check(name),  # type: ignore[misc]
        )
        if name in found:
            raise reader.fault(place, f"{name} is twice in {key}", "keep one of them")
        found[name] = _permission(reader, permission, place, f"that of {name} in {key}")
    return found


def _networks(reader: Reader, table: Mapping[str, Item]) -> tuple[Network, ...]:
    return tuple(
        reader.parsed(
            place,
            f"{text[:64]!a} is neither an address nor a network",
            "write 10.0.0.7, or 10.0.0.0/8 with zeros after its 8 bits",
            lambda text=text: ipaddress.ip_network(text),  # type: ignore[misc]
        )
        for text, place in reader.texts(table, "allowedRemoteAddresses")
    )
