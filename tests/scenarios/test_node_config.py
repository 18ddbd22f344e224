"""What a story sets by a field's name reaches a node of each world."""

import tomllib

import attrs
import pytest

from hastore.config import PARTS
from hastore.errors import ConfigError
from hastore.status import SlaveStart
from hastore_cli.settings.config_file import parse_table
from hastore_cli.settings.settings import PLACES
from hastore_scenarios.worlds.node_config import to_toml, with_defaults


def test_a_node_reads_every_setting_that_a_story_may_give():
    """The TOML that a process gets has the values of the fields, in their units."""
    fields = [field for part in PARTS.values() for field in attrs.fields(part)]
    own = {"data_dir", "flush_disk_type", "delete_only_archived"}  # directories, and an argument
    given = {field.name: field.default for field in fields if field.name not in own}
    given |= {"mapped_file_size": 8192, "ha_new_slave_from": SlaveStart.LAST_FILE}
    found = parse_table(tomllib.loads(to_toml(with_defaults(given))), "story.toml")
    places = PLACES["slave"] | PLACES["master"]
    assert {places[setting].field.name: read.value for setting, read in found.items()} == given


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"flush_disk_type": "x"}, "flush_disk_type is not a setting of a node"),
        ({"delete_when": 4}, "delete_when=4: use a text"),
        ({"mapped_file_size": "1MiB"}, "mapped_file_size='1MiB': use a whole number"),
    ],
)
def test_what_no_node_takes_is_refused_before_one_starts(config, said):
    """A field that the world sets itself, and a value of another type."""
    with pytest.raises(ConfigError, match=said):
        with_defaults(config)
