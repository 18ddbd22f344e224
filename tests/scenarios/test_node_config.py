"""Settings that a story passes by field name reach the nodes of every world."""

import tomllib

import attrs
import pytest

from hastore.config import PARTS
from hastore.errors import ConfigError
from hastore.status import SlaveStart
from hastore_cli.settings.config_file import parse_table
from hastore_cli.settings.settings import PLACES
from hastore_scenarios.worlds.node_config import to_toml, with_defaults


def test_a_node_reads_every_setting_a_story_may_pass():
    """The TOML for a process has the values of the fields in their units."""
    fields = [field for part in PARTS.values() for field in attrs.fields(part)]
    # Directories, an argument, and what no story knows:
    set_by_world = {"data_dir", "flush_disk_type", "delete_only_archived", "trust"}
    set_by_world |= {"min_in_sync_replicas"}  # its default depends on the group
    given = {field.name: field.default for field in fields if field.name not in set_by_world}
    given |= {"mapped_file_size": 8192, "ha_new_slave_from": SlaveStart.LAST_FILE}
    found = parse_table(tomllib.loads(to_toml(with_defaults(given))), "story.toml")
    places = PLACES["slave"] | PLACES["master"]
    assert {places[setting].field.name: read.value for setting, read in found.items()} == given


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"flush_disk_type": "x"}, "flush_disk_type is not a setting of a node"),
        ({"delete_when": 4}, "delete_when=4: use a text"),
        ({"mapped_file_size": "1MiB"}, "mapped_file_size='1MiB': use a whole number"),
    ],
)
def test_an_invalid_setting_is_refused_before_a_node_starts(config, message):
    """Fields that the world sets itself, and values of the wrong type."""
    with pytest.raises(ConfigError, match=message):
        with_defaults(config)
