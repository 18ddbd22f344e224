"""Settings from flags, environment and TOML: precedence, origins and error messages."""

import errno
import os
import re
import tomllib
from pathlib import Path

import attrs
import pytest
import rich_click as click
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import (
    AccessConfig,
    CoordinatorConfig,
    GroupNodeConfig,
    HAConfig,
    MasterConfig,
    RemotingConfig,
    SlaveConfig,
    StoreConfig,
    TlsConfig,
)
from hastore.errors import ConfigError
from hastore.setting import Kind
from hastore.status import (
    BrokerRole,
    ClientCertificates,
    FlushDiskType,
    HAProtocol,
    OwnSignatures,
    SlaveStart,
    TlsMode,
    TlsVersion,
)
from hastore_cli.app.log_output import LogConfig
from hastore_cli.main import root
from hastore_cli.node.commands import node_settings, resolve
from hastore_cli.settings.config_file import (
    find_config_file,
    near_miss_variables,
    parse_table,
    read_config_file,
    read_environment,
)
from hastore_cli.settings.kinds import format_value, parse_value
from hastore_cli.settings.settings import PLACES, SECTIONS, SETTINGS, default_text, setting_at
from tests.support.repository import REPO_ROOT


@pytest.fixture(autouse=True)
def no_other_sources(monkeypatch, tmp_path):
    """Hide this machine's environment variables and configuration files."""
    import os

    for name in list(os.environ):
        if name.startswith("HASTORE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))


def write(path: Path, text: str) -> Path:
    """Write a TOML file and return its path."""
    path.write_text(text)
    return path


def test_flags_override_environment_then_file_then_default(tmp_path, monkeypatch):
    """The origin of each setting is recorded."""
    file = write(
        tmp_path / "h.toml",
        '[node]\ndata="F"\nname="from-file"\ncluster="from-file"\n[ha]\nslave_timeout="9s"\n',
    )
    monkeypatch.setenv("HASTORE_NODE_NAME", "from-env")
    monkeypatch.setenv("HASTORE_HA_SLAVE_TIMEOUT", "500ms")
    settings = node_settings("master", {"node_name": "from-flag"}, str(file))
    assert isinstance(settings.node, MasterConfig)
    assert settings.node.name == "from-flag"
    assert settings.node.ha.slave_timeout_ms == 500
    assert settings.node.cluster == "from-file"
    assert settings.node.ha.ha_slave_fallbehind_max == 256 << 20
    origins = {setting.name: found.origin for setting, found in settings.found.items()}
    assert origins == {
        "[node] name": "--name",
        "[node] cluster": str(file),
        "[node] data": str(file),
        "[ha] slave_timeout": "HASTORE_HA_SLAVE_TIMEOUT",
    }


def test_check_config_prints_every_setting():
    """All keys that this kind of node uses, except unset ones."""
    for node, flags in (
        ("master", {"node_data": "D"}),
        ("slave", {"node_data": "D", "ha_master": ("127.0.0.1", 1)}),
    ):
        table = tomllib.loads(node_settings(node, flags, None).to_toml())
        printed = {(section, key) for section, keys in table.items() for key in keys}
        unset = {
            ("store", "mapped_file_size"),
            ("store", "delete_only_archived"),
            ("metrics", "listen"),
            ("node", "id"),
            ("node", "group"),
            ("node", "group_ids"),
            ("ha", "master_client"),
            ("ha", "min_in_sync_replicas"),
            ("listen", "observer"),
            ("access", "file"),
            ("access", "key_file"),
            ("tls", "cert"),
            ("tls", "key"),
            ("tls", "key_password_file"),
            ("tls", "client_ca"),
            ("tls", "crl"),
            ("tls", "ca"),
            ("tls", "server_name"),
        }
        expected = {(s.section, s.key) for s in PLACES[node]} - unset
        assert printed == expected


@pytest.mark.parametrize(
    ("part", "config"),
    [
        ("", MasterConfig),
        ("", SlaveConfig),
        ("", GroupNodeConfig),
        ("store", StoreConfig),
        ("ha", HAConfig),
        ("remoting", RemotingConfig),
        ("access", AccessConfig),
        ("tls", TlsConfig),
        ("coordinator", CoordinatorConfig),
        ("log", LogConfig),
    ],
)
def test_every_field_of_the_configuration_is_a_setting(part, config):
    """So every option of a node can be set by a file, a variable or a flag."""
    fields = {field.name for field in attrs.fields(config)}
    fields -= {"store", "ha", "remoting", "access", "tls", "coordinator"}
    places = [place for places in PLACES.values() for place in places.values()]
    assert fields <= {place.field.name for place in places if place.part == part}


def test_check_config_output_configures_an_equal_node(tmp_path):
    """The printed TOML is read back as a configuration file."""
    flags = {
        "node_data": 'a "quoted" \\ path',
        "node_role": BrokerRole.ASYNC_MASTER,
        "store_flush": FlushDiskType.SYNC_FLUSH,
        "store_mapped_file_size": 8 << 20,
        "listen_client": ("::1", 1234),
        "store_delete_when": "04;16",
        "store_keep": 24,
        "store_disk_max": 70,
        "store_delay_levels": "1s 2d",
        "store_flush_least_pages": 0,
        "remoting_long_polling": False,
        "node_id": 3,
        "node_group": "g1",
    }
    first = node_settings("master", flags, None)
    second = node_settings("master", {}, str(write(tmp_path / "again.toml", first.to_toml())))
    assert second.node == first.node
    assert second.log == first.log


def test_a_coordinator_is_read_from_a_list_or_a_text_and_only_by_a_node(tmp_path):
    """A master may have the same file; what is printed configures an equal node."""
    text = """[node]\ndata="D"\nid=1\ngroup="g1"\n[cluster]\netcd=["https://a:1","https://b:2/"]
    ttl="5s"\npriority=3\nname="orders"\nuser="u"\npassword_file="P"\nadvertise="n1"
    [listen]\nclient="0.0.0.0:10911"\nha="0.0.0.0:10912"\n"""
    file = str(write(tmp_path / "h.toml", text))
    first = node_settings("node", {}, file)
    assert isinstance(first.node, GroupNodeConfig)
    coordinator = first.node.coordinator
    assert coordinator.endpoints == ("https://a:1", "https://b:2")
    assert (coordinator.ttl_ms, coordinator.priority) == (5_000, 3)
    again = node_settings("node", {}, str(write(tmp_path / "again.toml", first.to_toml())))
    assert again.node == first.node
    assert isinstance(node_settings("master", {}, file).node, MasterConfig)
    alone = node_settings("node", {"node_data": "D", "node_id": 1, "node_group": "g"}, None)
    assert "# etcd: " in alone.to_toml()
    with pytest.raises(ConfigError, match=r"HASTORE_CLUSTER_ETCD: .* is not the URL"):
        read_environment({"HASTORE_CLUSTER_ETCD": "a:2379"})


@pytest.mark.parametrize(
    ("text", "what", "nearest"),
    [
        ('[ha]\nslave_timout="3s"', "[ha] slave_timout", "[ha] slave_timeout"),
        ('[store]\nslave_timeout="3s"', "[store] slave_timeout", "[ha] slave_timeout"),
        ('[sore]\nflush="async"', "[sore]", "[store]"),
        ('flush="async"', "flush", "[store] flush"),
        ("[store]\nmappedfilesize=1", "[store] mappedfilesize", "[store] mapped_file_size"),
        ("[store]\nxyzzy=1", "[store] xyzzy", "[store] "),
        ("[store]\nfoo=1", "[store] foo", "[store] "),
        ('[store]\nslave_timeot="3s"', "[store] slave_timeot", "[ha] slave_timeout"),
    ],
)
def test_unknown_key_error_names_the_file_and_the_nearest_key(tmp_path, text, what, nearest):
    """For misspelt keys, keys in a wrong section, and keys without a section."""
    file = write(tmp_path / "bad.toml", text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(file)
    message = str(caught.value)
    line = 1 if what == "[sore]" else len(text.splitlines())
    assert message.startswith(f"{file}, line {line}: no such key: {what}")
    assert f"the nearest is {nearest}" in message
    assert caught.value.exit_code == 2
    assert caught.value.hint


@pytest.mark.parametrize(
    ("section", "key", "value", "reason"),
    [
        ("ha", "slave_timeout", 3, "write 500ms, 3s"),
        ("ha", "slave_timeout", "0s", "above 0"),
        ("store", "mapped_file_size", 1.5, "whole number"),
        ("store", "mapped_file_size", True, "whole number"),
        ("store", "flush", "never", "not one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("store", "prop_crc", "maybe", "neither true nor false"),
        ("ha", "from", "middle", "not one of earliest, last-file"),
        ("node", "role", "king", "not one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("node", "name", 7, "not a text"),
        ("node", "data", " ", "is empty: write the path of a directory"),
        ("listen", "ha", "10912", "HOST:PORT"),
        ("remoting", "queues", "eight", "whole number"),
        ("store", "keep", "90min", "whole number of hours: write 72h, or 3d"),
        ("store", "keep", 72, "write 500ms"),
        ("store", "delete_when", "24", "'24' is not an hour from 00 to 23; write 04, or 04;16"),
        ("store", "delete_when", "04,16", "write 04, or 04;16"),
        ("store", "delete_when", "04;", "'' is not an hour"),
        ("store", "disk_max", 0.75, "not a percentage from 1% to 100%"),
        ("store", "disk_full", "101%", "not a percentage"),
        ("store", "delay_levels", "1s 5x", "'5x' is not a delay; write 1s 10s 1m 2h"),
        ("store", "delay_levels", " ", "0 entries"),
        ("store", "flush_least_pages", -1, "whole number"),
    ],
)
def test_invalid_value_error_names_the_file_and_the_key(section, key, value, reason):
    """The message also says which values are valid."""
    with pytest.raises(ConfigError) as caught:
        parse_table({section: {key: value}}, "x.toml")
    assert str(caught.value).startswith(f"x.toml: [{section}] {key}: ")
    assert reason in str(caught.value)
    assert caught.value.hint.startswith("correct it, or leave it out")


REFUSED_TOGETHER = [
    ('[ha]\nbatch_max = "8MiB"', 2, "[ha] batch_max must be 1 to 4194292 bytes, which", "1MiB"),
    ('[ha]\nbatch = "2MiB"', 2, "[ha] batch must not exceed [ha] batch_max: 2MiB", "32KiB"),
    ('[ha]\n\nheartbeat = "30s"', 3, "[ha] heartbeat must be below [ha] housekeeping: 30s", "5s"),
    ("[ha]\n# polls\nspin_us = 400", 3, "[ha] spin_us must be between 0 and 100, not 400", "0"),
    ("ha.spin_us = 400", 1, "[ha] spin_us must be", "0"),
    ("[ha]\n'spin_us' = 400", 2, "[ha] spin_us must be", "0"),
    ("ha = {spin_us = 400}", None, "[ha] spin_us must be", "0"),
    (
        '[store]\nmapped_file_size = "3GiB"',
        2,
        "[store] mapped_file_size must be 4 KiB to 2 GiB - 4 KiB",
        "out",
    ),
    ('[store]\nreserve = "1KiB"', 2, "[store] reserve must be 32KiB or more", "2MiB"),
    ('[store]\ndisk_max = "99%"', 2, "[store] disk_max 99 must not be above", "disk_max (75 %)"),
    ('[cluster]\nttl = "1s"', 2, "[cluster] ttl must be whole seconds, 3 or more", "no master"),
    ("[cluster]\npriority = 2000", 2, "[cluster] priority must be 0 to 1000, not 2000", "0"),
    ('[tls]\ncert = "c"', 2, "a certificate and its key need each other", "[tls] key"),
    ('[cluster]\ncert = "c"', 2, "[cluster] cert and [cluster] key need each other", "both"),
    ("[store]\ntransient_pool = true", 2, "[store] transient_pool is for masters", "leave it out"),
    ('[listen]\n[node]\ngroup = "a/b"', 3, "[node] group must be 1 to 127 of", "leave it out"),
]


@pytest.mark.parametrize(("text", "line", "what", "hint"), REFUSED_TOGETHER)
def test_values_out_of_range_are_named_by_file_line_and_key(tmp_path, text, line, what, hint):
    """Never by the fields of the classes, whose names a user of the command has never seen."""
    file = write(tmp_path / "bad.toml", f"{text}\n")
    given = {"node_data": "D", "node_id": 1}
    if "group" not in text:
        given["node_group"] = "g1"
    with pytest.raises(ConfigError) as caught:
        node_settings("node", given, str(file))
    place = str(file) if line is None else f"{file}, line {line}"
    assert str(caught.value).startswith(f"{place}: {what}")
    assert hint in caught.value.hint
    said = f"{caught.value} {caught.value.hint}"
    fields = {place.field.name for place in PLACES["node"].values()}
    keys = {setting.key for setting in PLACES["node"]}
    assert not (fields - keys) & set(re.findall(r"\w+", said.replace(str(file), "")))


def test_values_out_of_range_name_their_flag_or_variable(monkeypatch):
    """Of two values of different origin, both."""
    with pytest.raises(ConfigError) as caught:
        node_settings("master", {"node_data": "D", "store_mapped_file_size": 3 << 30}, None)
    assert str(caught.value).startswith(
        "--mapped-file-size: [store] mapped_file_size must be 4 KiB to"
    )
    monkeypatch.setenv("HASTORE_STORE_TRANSIENT_POOL", "true")
    flags = {"node_data": "D", "store_flush": FlushDiskType.SYNC_FLUSH}
    with pytest.raises(ConfigError) as caught:
        node_settings("master", flags, None)
    origins = "HASTORE_STORE_TRANSIENT_POOL; --flush: [store] transient_pool needs ASYNC_FLUSH"
    assert str(caught.value).startswith(origins)
    assert caught.value.hint == "turn the pool off, or set [store] flush to ASYNC_FLUSH"


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("keep", "3d", "file_reserved_time_h", 72),
        ("delete_when", 4, "delete_when", "04"),
        ("delete_when", "4; 16", "delete_when", "04;16"),
        ("disk_max", 80, "disk_max_used_space_ratio", 80),
        ("disk_max", "80 %", "disk_max_used_space_ratio", 80),
        ("flush_least_pages", 0, "flush_least_pages", 0),
        ("delete_interval", "0s", "delete_files_interval_ms", 0),
        ("delay_levels", "1s  2m", "message_delay_level", "1s 2m"),
    ],
)
def test_values_are_accepted_in_several_notations(tmp_path, key, value, field, expected):
    """Hours, percentages and lists are converted to the store's units."""
    text = value if isinstance(value, int) else f'"{value}"'
    file = write(tmp_path / "v.toml", f"[store]\n{key} = {text}\n")
    settings = node_settings("master", {"node_data": "D"}, str(file))
    assert getattr(settings.node.store, field) == expected


def test_invalid_variable_is_named_in_the_error():
    """The error gives the variable as the origin of the value."""
    with pytest.raises(ConfigError, match="HASTORE_STORE_MAPPED_FILE_SIZE: '12x' is not a size"):
        read_environment({"HASTORE_STORE_MAPPED_FILE_SIZE": "12x"})


def test_empty_variable_counts_as_unset():
    """`HASTORE_NODE_NAME=` unsets the name, as with other tools."""
    assert read_environment({"HASTORE_NODE_NAME": ""}) == {}


def test_misspelt_variables_are_reported():
    """Variables of other programs, such as those that Kubernetes sets, are ignored."""
    environ = {
        "HASTORE_STORE_MAPPED_FILE_SZE": "1",
        "HASTORE_HA_SERVICE_HOST": "k8s",
        "HASTORE_X": "",
    }
    assert near_miss_variables(environ) == [
        ("HASTORE_STORE_MAPPED_FILE_SZE", "HASTORE_STORE_MAPPED_FILE_SIZE")
    ]


@pytest.mark.parametrize(
    ("node", "role"), [("master", "SLAVE"), ("slave", "SYNC_MASTER"), ("slave", "ASYNC_MASTER")]
)
def test_config_file_with_another_role_is_refused(tmp_path, node, role):
    """A slave's file cannot start a master, nor a master's file a slave."""
    file = write(tmp_path / "r.toml", f'[node]\nrole = "{role.lower()}"\ndata = "D"\n')
    with pytest.raises(
        ConfigError, match=f"wrong role: .* says {role}, and this is `hastore {node}"
    ):
        resolve(node, flags={}, environ={}, file=file)


def test_one_file_can_configure_a_master_and_a_slave(tmp_path):
    """Each ignores the other's keys, so a slave can be promoted with the same file."""
    file = write(
        tmp_path / "both.toml",
        '[node]\ndata="D"\n[listen]\nha="h:1"\n[ha]\nmaster="m:2"\nfrom="LAST_FILE"\n',
    )
    slave = node_settings("slave", {}, str(file)).node
    master = node_settings("master", {}, str(file)).node
    assert isinstance(slave, SlaveConfig)
    assert slave.master == ("m", 2)
    assert slave.slave_from is SlaveStart.LAST_FILE
    assert isinstance(master, MasterConfig)
    assert master.ha_listen == ("h", 1)


def test_settings_without_a_default_are_required():
    """The error for a missing directory or master names the flag and the variable."""
    with pytest.raises(ConfigError, match="--data is missing") as caught:
        node_settings("master", {}, None)
    assert "HASTORE_NODE_DATA" in caught.value.hint
    with pytest.raises(ConfigError, match="--master is missing"):
        node_settings("slave", {"node_data": "D"}, None)


def test_first_existing_config_file_is_used(tmp_path, monkeypatch):
    """The order is -c, HASTORE_CONFIG, the working directory, the user's directory."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "user")}
    assert find_config_file(None, environ) is None
    user = tmp_path / "user" / "hastore" / "hastore.toml"
    user.parent.mkdir(parents=True)
    user.write_text("")
    assert find_config_file(None, environ) == user
    Path("hastore.toml").write_text("")
    assert find_config_file(None, environ) == Path("hastore.toml")
    assert find_config_file(None, {**environ, "HASTORE_CONFIG": "e.toml"}) == Path("e.toml")
    assert find_config_file("c.toml", {"HASTORE_CONFIG": "e.toml"}) == Path("c.toml")


@pytest.mark.parametrize("refused", ["the file", "its directory"])
def test_unreadable_default_config_file_is_skipped(tmp_path, monkeypatch, capsys, refused):
    """Missing permission for a file or its directory is an error only if the user names it."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "user")}
    user = tmp_path / "user" / "hastore" / "hastore.toml"
    user.parent.mkdir(parents=True)
    user.write_text("")
    kept_out = Path("closed" if refused == "its directory" else "hastore.toml")
    if refused == "the file":
        kept_out.write_text("")
        kept_out.chmod(0)
        real_access = os.access  # root may read it despite its mode
        monkeypatch.setattr(
            os, "access", lambda path, mode: Path(path) != kept_out and real_access(path, mode)
        )
    else:
        real_stat = Path.stat

        def stat(path, **more):
            if path == Path("hastore.toml"):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real_stat(path, **more)

        monkeypatch.setattr(Path, "stat", stat)
    with click.Context(click.Command("status")):
        for _ in range(2):
            assert find_config_file(None, environ) == user
    assert capsys.readouterr().err == (
        "note: hastore.toml may not be read, and is ignored; HASTORE_CONFIG names another file\n"
    )
    assert find_config_file("hastore.toml", environ) == Path("hastore.toml")


def test_digits_grouped_by_underscores_are_read_with_a_note(tmp_path, capsys):
    """In texts of a file, in variables and flags, as earlier versions did; never in names."""
    file = write(
        tmp_path / "t.toml",
        '[node]\ndata = "/data/n_1_000"\n[store]\nmapped_file_size = "1_024KiB"\n'
        '[remoting]\nin_flight_max = "4_096"\npull_count_max = 1_000\n',
    )
    environ = {"HASTORE_REMOTING_FRAME_MAX": "16_000_000"}

    def values(found):
        return {setting.name: each.value for setting, each in found.items()}

    with click.Context(click.Command("master")):
        for _ in range(2):
            found = values(read_config_file(file)) | values(read_environment(environ))
        master = root.get_command(click.Context(root), "master")
        (size,) = [each for each in master.params if "--mapped-file-size" in each.opts]
        assert size.type.convert("1_000KiB", size, None) == 1_000 * 1024
        with pytest.raises(click.BadParameter, match="'1_x' is not a size: write bytes"):
            size.type.convert("1_x", size, None)
    assert found == {
        "[node] data": "/data/n_1_000",
        "[store] mapped_file_size": 1 << 20,
        "[remoting] in_flight_max": 4_096,
        "[remoting] pull_count_max": 1_000,
        "[remoting] frame_max": 16_000_000,
    }
    assert capsys.readouterr().err.replace(", which the next version refuses", "").splitlines() == [
        f"note: {file}, line 4: [store] mapped_file_size: write 1024KiB instead of 1_024KiB",
        f"note: {file}, line 6: [remoting] in_flight_max: write 4096 instead of 4_096",
        "note: HASTORE_REMOTING_FRAME_MAX: write 16000000 instead of 16_000_000",
        "note: --mapped-file-size: write 1000KiB instead of 1_000KiB",
    ]


def test_named_config_file_must_be_readable_toml(tmp_path):
    """A missing file and invalid TOML are errors; a syntax error is reported with its line."""
    with pytest.raises(ConfigError, match=r"cannot read .*none.toml: No such file"):
        read_config_file(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"is not TOML: .*line 2"):
        read_config_file(write(tmp_path / "t.toml", "[ha]\nslave_timeout\n"))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_config_file(tmp_path / "b.toml")


@given(st.sampled_from(SETTINGS), st.data())
def test_every_value_round_trips_through_toml(setting, data):
    """parse_value() reverses format_value() for every kind."""
    values = {
        Kind.TEXT: st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1),
        Kind.BOOL: st.booleans(),
        Kind.ADDRESS: st.tuples(st.sampled_from(["h", "::1", "10.0.0.1"]), st.integers(0, 65_535)),
        Kind.ADDRESSES: st.lists(
            st.tuples(st.sampled_from(["h", "::1"]), st.integers(0, 65_535)), unique=True
        ).map(tuple),
        Kind.ROLE: st.sampled_from(BrokerRole),
        Kind.FLUSH: st.sampled_from(FlushDiskType),
        Kind.START: st.sampled_from(SlaveStart),
        Kind.PROTOCOL: st.sampled_from(HAProtocol),
        Kind.TLS_MODE: st.sampled_from(TlsMode),
        Kind.CLIENT_CERTIFICATES: st.sampled_from(ClientCertificates),
        Kind.PERCENT: st.integers(1, 100),
        Kind.HOURS: st.integers(1, 10_000),
        Kind.COUNT_OR_ZERO: st.integers(0, 1 << 40),
        Kind.DURATION_OR_ZERO: st.integers(0, 1 << 40),
        Kind.ALL_OR_COUNT: st.just("all") | st.integers(1, 100),
        Kind.COUNTS: st.sets(st.integers(1, 100), min_size=1).map(lambda ids: tuple(sorted(ids))),
        Kind.PEERS: st.lists(
            st.tuples(st.sampled_from(["10.0.0.7", "2001:db8::7"]), st.integers(0, 1 << 62))
        ).map(tuple),
        Kind.CLOCK_HOURS: st.sampled_from(["04", "04;16", "00;23"]),
        Kind.DELAY_LEVELS: st.sampled_from(["1s", "1s 5m 2h 1d"]),
        Kind.LOG_FORMAT: st.sampled_from(["auto", "console", "json"]),
        Kind.LOG_LEVEL: st.sampled_from(["debug", "info", "warning", "error"]),
    }
    values[Kind.NAMES] = st.sampled_from([(), ("*",), ("n1.example", "10.0.0.7")])
    values[Kind.URLS] = st.sampled_from([("http://h:1",), ("https://a:2379", "http://[::1]:4")])
    values[Kind.PATH] = values[Kind.FILE] = values[Kind.TEXT]
    values[Kind.LOCAL_ADDRESS] = values[Kind.HA_ADDRESS] = values[Kind.ADDRESS]
    values[Kind.OWN_SIGNATURES] = st.sampled_from(OwnSignatures)
    values[Kind.TLS_VERSION] = st.sampled_from(TlsVersion)
    for kind in Kind.COUNT, Kind.DURATION, Kind.SIZE:
        values[kind] = st.integers(1, 1 << 40)
    assert not {each.kind for each in SETTINGS} - values.keys()
    value = data.draw(values[setting.kind])
    text = tomllib.loads(f"x = {format_value(setting.kind, value)}")["x"]
    assert parse_value(setting.kind, text) == value


def test_port_without_a_host_is_on_loopback():
    """Other machines can read metrics only if the user asks for it."""
    assert parse_value(Kind.LOCAL_ADDRESS, "9402") == ("127.0.0.1", 9402)
    assert parse_value(Kind.LOCAL_ADDRESS, 9402) == ("127.0.0.1", 9402)
    assert parse_value(Kind.LOCAL_ADDRESS, "0.0.0.0:9402") == ("0.0.0.0", 9402)
    with pytest.raises(ValueError, match="not an address"):
        parse_value(Kind.LOCAL_ADDRESS, "nine")


def test_the_table_of_settings_is_consistent():
    """Keys, variables and flags are unique, and every default is valid for its kind."""
    assert len({(s.section, s.key) for s in SETTINGS}) == len(SETTINGS)
    assert len({s.environment_name for s in SETTINGS}) == len(SETTINGS)
    flags = [s.flag for s in SETTINGS if s.flag]
    assert len(set(flags)) == len(flags)
    for setting in SETTINGS:
        assert setting_at(setting.section, setting.key) is setting
        assert setting.section in SECTIONS
        assert setting.help.endswith(".")
        for node in PLACES:
            default = default_text(node, setting)
            if default is not None:
                parse_value(setting.kind, default)


def test_the_documentation_lists_every_setting_with_its_default():
    """The tables of docs/cli.md have exactly one row per setting."""
    text = (REPO_ROOT / "docs" / "cli.md").read_text()
    for section in SECTIONS:
        table = text.split(f"| `[{section}]` | default | |\n|---|---|---|\n")[1].split("\n\n")[0]
        rows = [documented(setting) for setting in SETTINGS if setting.section == section]
        assert table.splitlines() == rows


def documented(setting):
    """The row that docs/cli.md must have for the setting."""
    flag = f" (`{setting.flag}`)" if setting.flag else ""
    default = next(filter(None, (default_text(node, setting) for node in PLACES)), None)
    shown = f"`{default}`" if default else ""
    # A node of a replica group may be either of the two.
    heeding = [node for node in ("master", "slave") if setting in PLACES[node]] or ["node"]
    only = f" {heeding[0].capitalize()} only." if len(heeding) == 1 else ""
    text = setting.help.replace("|", "\\|")
    return f"| `{setting.key}`{flag} | {shown} | {text}{only} |"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("10.0.0.7", "is not an IP address and an offset"),
        ("host@5", "is not an IP address and an offset"),
        ("10.0.0.7@", "is not a whole number"),
        ("10.0.0.7@5,", "is not an IP address and an offset"),
        ("10.0.0.7@-5", "is not a whole number"),
    ],
)
def test_trust_names_an_address_and_an_offset(text, what):
    """As the refusal does: a name could be another host tomorrow."""
    with pytest.raises(ValueError, match=what):
        parse_value(Kind.PEERS, text)
    assert parse_value(Kind.PEERS, " [2001:db8::7]@4096, 10.0.0.7@5") == (
        ("2001:db8::7", 4096),
        ("10.0.0.7", 5),
    )


def test_old_names_are_accepted_with_one_note(tmp_path, monkeypatch, capsys):
    """Files and variables of 0.1.0 go on working; a file with both names is refused."""
    file = write(tmp_path / "old.toml", '[store]\nfile_size = "4MiB"\n[node]\ndata = "D"\n')
    config = node_settings("master", {}, str(file)).node
    assert config.store.mapped_file_size == 4 << 20
    note = "note: {} is called {} now; the old name ends with the next release\n"
    assert capsys.readouterr().err == note.format(
        f"{file}, line 2: [store] file_size", "mapped_file_size"
    )
    monkeypatch.setenv("HASTORE_CLUSTER_ENDPOINTS", "http://old:2379")
    names = ("HASTORE_CLUSTER_ENDPOINTS", "HASTORE_CLUSTER_ETCD")
    (found,) = [each.value for each in read_environment(os.environ).values()]
    assert found == ("http://old:2379",)
    assert capsys.readouterr().err == note.format(*names)
    assert near_miss_variables(os.environ) == []
    monkeypatch.setenv("HASTORE_CLUSTER_ETCD", "http://new:2379")
    (found,) = [each.value for each in read_environment(os.environ).values()]
    assert (found, capsys.readouterr().err) == (("http://new:2379",), "")
    both = write(tmp_path / "both.toml", "[store]\nfile_size = 4096\nmapped_file_size = 4096\n")
    with pytest.raises(ConfigError, match=r"line 2: .* is the old name of mapped_file_size"):
        read_config_file(both)
