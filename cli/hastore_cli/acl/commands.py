"""``hastore acl``: check a permissions file, explain what a key may do, make a key."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore_cli.app.command import ExampleCommand, LazyGroup

if TYPE_CHECKING:
    from hastore.access.permissions import Account, Need, PermissionTable
    from hastore.broker.access.rules import Rule

_EXIT_DENIED: Final = 7
_SECRET_BYTES: Final = 32

_file_option: Final = click.option(
    "--file",
    type=click.Path(),
    metavar="FILE",
    envvar="HASTORE_ACCESS_FILE",
    show_envvar=True,
    help="The permissions file. Default: [access] file of the configuration file.",
)


@click.group(
    name="acl",
    cls=LazyGroup,
    examples=(
        "hastore acl keygen reader-key    # writes reader-key.toml, mode 0600",
        "hastore acl check acl.yml",
        "hastore acl explain --file acl.yml reader-key PULL_MESSAGE orders -g billing",
    ),
)
def acl_group() -> None:
    """Access keys and what they may do."""


@acl_group.command(
    name="check",
    cls=ExampleCommand,
    examples=("hastore acl check acl.yml",),
    epilog="Exit code: 0 a node takes the file, 2 it does not.",
)
@click.argument("file", type=click.Path())
def check(file: str) -> None:
    """Check a permissions FILE as a node does, and list its accounts.

    No secret is printed. A node that runs takes a new version of its file only if this command
    finds no fault in it.
    """
    from hastore_cli.app.terminal import say, tell

    table = _read(file)
    for account in table.accounts.values():
        tell(_line(account))
    if not any(account.is_admin for account in table.accounts.values()):
        say("note: no account is an admin's, so nobody can create topics, and no slave copy them")


@acl_group.command(
    name="explain",
    cls=ExampleCommand,
    examples=(
        "hastore acl explain --file acl.yml reader-key SEND_MESSAGE_V2 orders",
        "hastore acl explain --file acl.yml reader-key 11 orders -g billing",
    ),
    epilog="Exit code: 0 allowed, 7 denied, 2 usage.",
)
@click.argument("key")
@click.argument("code")
@click.argument("topic", required=False)
@click.option("-g", "--group", metavar="GROUP", help="The consumer group of the request.")
@click.option(
    "--cluster",
    default="DefaultCluster",
    show_default=True,
    metavar="NAME",
    help="The node's cluster, whose reply topic every key may send to.",
)
@_file_option
def explain(
    *, key: str, code: str, topic: str | None, group: str | None, cluster: str, file: str | None
) -> int:
    """Say whether KEY may send request CODE about TOPIC, and by which line of its account.

    KEY is the name of an access key, CODE a number or a name such as PULL_MESSAGE. It reads the
    file only and asks no node.
    """
    from hastore.errors import ConfigError
    from hastore.topic import reply_topic
    from hastore_cli.acl.access_key import access_setting
    from hastore_cli.app.terminal import tell

    path = file or access_setting("file", os.environ)
    if path is None:
        raise ConfigError("no permissions file is named", hint="name it: --file FILE")
    account = _read(path).accounts.get(key)
    if account is None:
        raise ConfigError(
            f"{path} has no account of access key {key}",
            hint=f"hastore acl check {path} lists them",
        )
    replies = reply_topic(cluster)
    name, rule = _rule_of(code)
    needs = _needs(name, rule, topic, group)
    is_allowed = True
    tell(f"{name} needs {rule.text}")
    for need in needs:
        granted = account.may(need, replies)
        is_allowed &= granted
        tell(f"  {'yes' if granted else 'no ':<4} {need}: {account.why(need, replies)}")
    tell(f"{key} is {'allowed' if is_allowed else 'denied'}")
    return 0 if is_allowed else _EXIT_DENIED


@acl_group.command(
    name="keygen",
    cls=ExampleCommand,
    examples=(
        "hastore acl keygen reader-key",
        "hastore acl keygen reader-key --out /etc/hastore/reader-key.toml",
    ),
    epilog="Exit code: 0 written, 6 the file exists, 2 a name that no key can have.",
)
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the key. Default: NAME.toml",
)
def keygen(name: str, out: Path | None) -> None:
    """Make an access key NAME with a random secret, in a file that only you may read.

    The secret is written to the file and printed nowhere. An existing file is never overwritten.
    """
    import secrets

    from hastore.access.key_file import key_text, parse_key
    from hastore.access.secret import Secret
    from hastore.access.signature import AccessKey
    from hastore.errors import ConfigError, OperationRefusedError
    from hastore_cli.app.terminal import say_next, tell

    path = out or Path(f"{name}.toml")
    if path.suffix != ".toml" or "/" in name or '"' in name or "\\" in name:
        raise ConfigError(f"{path}: a key file is NAME.toml", hint="hastore acl keygen reader-key")
    text = key_text(AccessKey(name, Secret(secrets.token_urlsafe(_SECRET_BYTES))))
    parse_key(text.encode(), str(path))  # the name can be one
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise OperationRefusedError(
            f"{path} exists, and stays as it is", hint="choose another file: --out FILE"
        ) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    tell(f"{path}  access key {name}, mode 0600")
    account = f"(printf '\\n[[accounts]]\\n'; cat {shlex.quote(str(path))})"
    # The file has secrets, so `acl check` and nodes refuse it if others may read it.
    say_next(f"(umask 077; {account} >> acl.toml)    # then its permissions")


def _read(path: str) -> PermissionTable:
    from hastore.access.permissions_file import parse_permissions
    from hastore.access.secret_file import read_secret_file
    from hastore.env.real import real_env

    data, _ = read_secret_file(real_env().disk, path)
    return parse_permissions(data, path)


def _line(account: Account) -> str:
    """Return an account as a line, without its secret."""
    if account.is_admin:
        return f"{account.key.name}  admin"
    parts = [
        f"topics {account.default_topic.text}",
        *(f"{name}={permission.text}" for name, permission in sorted(account.topics.items())),
        f"groups {account.default_group.text}",
        *(f"{name}={permission.text}" for name, permission in sorted(account.groups.items())),
    ]
    if account.networks:
        parts.append(f"from {', '.join(map(str, account.networks))}")
    return f"{account.key.name}  {'  '.join(parts)}"


def _rule_of(code: str) -> tuple[str, Rule]:
    """Return the name and the rule of a code.  Raises ConfigError for none."""
    from hastore.broker.access.rules import RULES
    from hastore.errors import ConfigError
    from hastore.wire.remoting_codes import RequestCode

    for number, rule in RULES.items():
        name = RequestCode(number).name
        if code.upper() in {name, str(int(number))}:
            return f"{name} ({int(number)})", rule
    raise ConfigError(
        f"no rule allows request {code}: it is denied, to an admin, too",
        hint="docs/security.md lists the requests, such as PULL_MESSAGE (11)",
    )


def _needs(name: str, rule: Rule, topic: str | None, group: str | None) -> tuple[Need, ...]:
    """Return what the request needs.  Raises ConfigError if its topic or group is not known."""
    from hastore.access.permissions import ADMIN, DENY, SUB, Need, Subject
    from hastore.broker.access.rules import Found
    from hastore.errors import ConfigError

    if rule.is_admins:
        return (ADMIN,)
    is_found = rule.found is Found.AT_OFFSET
    if topic is None and (is_found or rule.topic is not DENY):
        raise ConfigError(f"{name} is about a topic", hint="name it after the code")
    if group is None and rule.group is not DENY:
        raise ConfigError(f"{name} is about a consumer group", hint="name it: -g GROUP")
    needs = tuple(
        rule.needs_on(
            [topic] if topic is not None and rule.topic is not DENY else [],
            [group] if group is not None and rule.group is not DENY else [],
        )
    )
    return (*needs, Need(Subject.TOPIC, topic, SUB)) if is_found and topic is not None else needs
