"""The file systems of a store's directories, and what a sentence calls them."""

import attrs

from hastore.env.interface import DiskSpace
from hastore.store.disk_usage import disk_name, disk_usages


@attrs.define
class Mounts:
    """A disk whose paths are on the devices that a test names; each has its used ratio."""

    devices: dict[str, int]
    ratios: dict[int, float]

    def exists(self, path):
        return path in self.devices

    def space(self, path):
        device = self.devices[path]
        return DiskSpace(device=device, used_ratio=self.ratios[device], free_bytes=1)


def test_a_file_system_is_reported_once_and_the_fullest_comes_first():
    """With the directories on it; those that do not exist are on none."""
    mounts = Mounts(
        {"/d": 1, "/d/commitlog": 2, "/d/consumequeue": 2, "/d/config": 1}, {1: 0.5, 2: 0.9}
    )
    found = [(usage.directories, usage.is_cleaned) for usage in disk_usages(mounts, "/d")]
    assert found == [(("commitlog", "consumequeue"), True), ((".", "config"), False)]


def test_a_file_system_is_named_by_what_of_the_store_is_on_it():
    """The one that holds the data directory and the log is simply the disk."""
    assert disk_name((".", "commitlog", "index")) == "disk"
    assert disk_name(("commitlog", "index")) == "disk of commitlog, index"
    assert disk_name((".", "config")) == "disk of config"
    assert disk_name((".",)) == "disk of the data directory"
