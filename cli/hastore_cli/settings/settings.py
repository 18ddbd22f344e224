"""The table of all settings of a node: TOML key = environment variable = flag = field.

::

    [ha] slave_timeout = "3s"      HASTORE_HA_SLAVE_TIMEOUT=3s      --slave-timeout 3s
                    └────────── one ``Setting``: section, key, kind, flag, target field ──────────┘

Everything else (reading a file, the flags of ``hastore master``, ``--check-config``, the error for
a key that does not exist) is derived from this table, so that it cannot disagree with it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import attrs

from hastore.config import HAConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore_cli.settings.kinds import LOG_FORMATS, LOG_LEVELS, Kind, format_value
from hastore_cli.settings.setting import MASTER, SLAVE, Setting, part_setting
from hastore_cli.settings.store_settings import REMOTING_SETTINGS, STORE_SETTINGS

_ha = partial(part_setting, "ha", nodes=MASTER)

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        section="node",
        key="data",
        kind=Kind.PATH,
        target="store.data_dir",
        flag="--data",
        help="Directory of the commit log; made where there is none.",
    ),
    Setting(
        section="node",
        key="role",
        kind=Kind.ROLE,
        target="role",
        flag="--broker-role",
        nodes=MASTER,
        help="Whether producers wait for a slave (SYNC_MASTER) or not.",
    ),
    Setting(
        section="node",
        key="name",
        kind=Kind.TEXT,
        target="name",
        flag="--name",
        help="Broker name in routes and in status.",
    ),
    Setting(
        section="node",
        key="cluster",
        kind=Kind.TEXT,
        target="cluster",
        flag="--cluster",
        help="Cluster name in routes and in status.",
    ),
    Setting(
        section="listen",
        key="client",
        kind=Kind.ADDRESS,
        target="listen",
        flag="--listen",
        help="Port for producers, consumers and `hastore status`; port 0 is any free one.",
    ),
    Setting(
        section="listen",
        key="ha",
        kind=Kind.ADDRESS,
        target="ha_listen",
        flag="--ha-listen",
        nodes=MASTER,
        help="Port for slaves; port 0 is any free one.",
    ),
    Setting(
        section="ha",
        key="master",
        kind=Kind.HA_ADDRESS,
        target="master",
        flag="--master",
        nodes=SLAVE,
        help="The master's HA port.",
    ),
    Setting(
        section="ha",
        key="from",
        kind=Kind.START,
        target="slave_from",
        flag="--from",
        nodes=SLAVE,
        help="Where a slave without a log begins.",
    ),
    _ha(
        "slave_timeout",
        Kind.DURATION,
        "slave_timeout_ms",
        "How long a put waits for a slave before it is answered FLUSH_SLAVE_TIMEOUT.",
        flag="--slave-timeout",
    ),
    _ha(
        "max_gap",
        Kind.SIZE,
        "ha_slave_fallbehind_max",
        "A slave further behind does not count as available.",
        flag="--max-gap",
    ),
    _ha("batch", Kind.SIZE, "ha_transfer_batch_size", "Smallest batch of a stream."),
    _ha("batch_max", Kind.SIZE, "ha_transfer_batch_size_max", "Largest batch, for a laggard."),
    _ha("new_slave_from", Kind.START, "ha_new_slave_from", "What a report of 0 is given."),
    _ha("connections_max", Kind.COUNT, "ha_connections_max", "Slave connections at a time."),
    _ha(
        "connections_per_address_max",
        Kind.COUNT,
        "ha_connections_per_address_max",
        "Those of one address.",
    ),
    _ha(
        "first_report_timeout",
        Kind.DURATION,
        "ha_first_report_timeout_ms",
        "Who connects and does not say where it stands is closed after this time.",
    ),
    _ha(
        "heartbeat",
        Kind.DURATION,
        "ha_send_heartbeat_interval_ms",
        "Heartbeats.",
        nodes=MASTER | SLAVE,
    ),
    _ha(
        "housekeeping",
        Kind.DURATION,
        "ha_housekeeping_interval_ms",
        "A silent link is closed after this time.",
        nodes=MASTER | SLAVE,
    ),
    _ha(
        "connect_timeout",
        Kind.DURATION,
        "ha_connect_timeout_ms",
        "A connect is given up after this time.",
        nodes=SLAVE,
    ),
    _ha(
        "reconnect_min",
        Kind.DURATION,
        "ha_reconnect_backoff_min_ms",
        "First wait before a reconnect.",
        nodes=SLAVE,
    ),
    _ha(
        "reconnect_max",
        Kind.DURATION,
        "ha_reconnect_backoff_max_ms",
        "Longest wait before a reconnect.",
        nodes=SLAVE,
    ),
    Setting(
        section="metrics",
        key="listen",
        kind=Kind.LOCAL_ADDRESS,
        target="metrics_listen",
        flag="--metrics",
        help="Port for metrics and health over HTTP; a port alone listens on 127.0.0.1.",
    ),
    *STORE_SETTINGS,
    *REMOTING_SETTINGS,
    Setting(
        section="log",
        key="format",
        kind=Kind.LOG_FORMAT,
        target="log.format",
        flag="--log-format",
        help="Lines for people, or JSON; auto: sentences on a terminal, else JSON.",
    ),
    Setting(
        section="log",
        key="level",
        kind=Kind.LOG_LEVEL,
        target="log.level",
        flag="--log-level",
        help="Least level that is logged (to stderr).",
    ),
)

SECTIONS: Final = tuple(dict.fromkeys(setting.section for setting in SETTINGS))


def settings_of(node: str) -> tuple[Setting, ...]:
    """The settings that ``master`` or ``slave`` heeds."""
    return tuple(setting for setting in SETTINGS if node in setting.nodes)


def default_text(node: str, setting: Setting) -> str | None:
    """The default as a person would write it; None where there is none."""
    part, _, field = setting.target.rpartition(".")
    if part == "log":
        return {"format": LOG_FORMATS[0], "level": LOG_LEVELS[1]}[field]
    owner = {
        "store": StoreConfig,
        "ha": HAConfig,
        "remoting": RemotingConfig,
        "": MasterConfig if node == "master" else SlaveConfig,
    }[part]
    default = getattr(attrs.fields(owner), field).default
    if default is attrs.NOTHING or default is None:
        return None
    return format_value(setting.kind, default).strip('"')


def setting_at(section: str, key: str) -> Setting | None:
    """The setting of a section and key, if there is one."""
    for setting in SETTINGS:
        if setting.section == section and setting.key == key:
            return setting
    return None
