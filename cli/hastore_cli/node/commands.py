"""``hastore master`` and ``hastore slave``: flags from the settings, then run the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import rich_click as click

from hastore_cli.app.command import ExampleCommand
from hastore_cli.settings.kinds import choices_of, parse_value
from hastore_cli.settings.param_types import ParsedType
from hastore_cli.settings.settings import PLACES, default_text
from hastore_cli.settings.store_config import config_option_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.setting import Kind

_PRECEDENCE = (
    "A flag wins over its environment variable HASTORE_<SECTION>_<KEY>, that over the file, that"
    " over the default. Files: -c, $HASTORE_CONFIG, ./hastore.toml, the user's configuration"
    " directory, /etc/hastore/hastore.toml; the first that exists is read."
)
_PANELS = {
    "node": "Node",
    "listen": "Ports",
    "ha": "Replication",
    "metrics": "Ports",
    "store": "Store",
    "remoting": "Client port",
    "log": "Configuration and log",
}


@final
class SettingOption(click.RichOption):
    """Shows its environment variable; ``hastore_cli.settings.config_file`` reads it."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:  # noqa: ARG002
        """Leave the environment alone."""
        return None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Name the flag alone: what was read is what was typed."""
        return click.Parameter.get_error_hint(self, ctx)


def _setting_options(node: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(PLACES[node]):
            if setting.flag is None:
                continue
            default = default_text(node, setting)
            command = click.option(
                setting.flag,
                setting.parameter,
                cls=SettingOption,
                type=_parameter_type(setting.kind),
                metavar=setting.kind.value,
                envvar=setting.environment_name,
                show_envvar=True,
                help=setting.help + (f" [default: {default}]" if default else ""),
                panel=_PANELS[setting.section],
            )(command)
        return command

    return decorate


def _parameter_type(kind: Kind) -> ParsedType:
    return ParsedType(kind.value, lambda text: parse_value(kind, text), choices_of(kind))


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--check-config",
        is_flag=True,
        panel=_PANELS["log"],
        help="Print the whole configuration with the origin of each value, and end.",
    )(command)
    return config_option_of("Configuration file.", panel=_PANELS["log"])(command)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore master --data D1 --broker-role SYNC_MASTER",
        "hastore master --data D1 --listen 0.0.0.0:10911 --ha-listen 0.0.0.0:10912",
        "hastore master -c hastore.toml --flush SYNC_FLUSH",
        "HASTORE_NODE_DATA=D1 hastore master --check-config > hastore.toml",
    ),
    epilog=_PRECEDENCE,
)
@_setting_options("master")
@_config_options
def master(config_flag: str | None, *, check_config: bool, **flags: object) -> int:
    """Run a master: it takes messages and streams its log to slaves.

    SIGTERM and Ctrl-C stop it cleanly: what waits is answered, the log is flushed. A second one
    ends it at once.
    """
    return _run("master", flags, config_flag, check_config=check_config)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore slave --data D2 --master 127.0.0.1:10912",
        "hastore slave --data D3 --master 127.0.0.1:10912 --from last-file",
        "hastore slave --data D2 --master db1:10912 --flush SYNC_FLUSH",
    ),
    epilog=_PRECEDENCE,
)
@_setting_options("slave")
@_config_options
def slave(config_flag: str | None, *, check_config: bool, **flags: object) -> int:
    """Run a slave: it copies a master's log byte by byte and acknowledges.

    With --flush SYNC_FLUSH it acknowledges only what is on its disk. It goes on trying while its
    master is away; `hastore status` at its own port says how it stands.
    """
    return _run("slave", flags, config_flag, check_config=check_config)


def _run(
    kind: str, flags: dict[str, object], config_flag: str | None, *, check_config: bool
) -> int:
    from hastore_cli.app.terminal import tell
    from hastore_cli.node.settings import node_settings

    settings = node_settings(kind, flags, config_flag)
    if check_config:
        tell(settings.to_toml())
        return 0
    from hastore_cli.node.runner import run_node

    return run_node(settings)
