"""The file systems of a store's directories, and what a sentence calls them."""

import attrs
import pytest

from hastore.env.interface import DiskSpace
from hastore.errors import DiskError
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
        if device not in self.ratios:
            raise DiskError("Input/output error", path=path)
        return DiskSpace(device=device, used_ratio=self.ratios[device], free_bytes=1)


def test_a_file_system_is_reported_once_and_the_fullest_comes_first():
    """With the directories on it; those that do not exist are on none."""
    mounts = Mounts(
        {"/d": 1, "/d/commitlog": 2, "/d/consumequeue": 2, "/d/config": 1}, {1: 0.5, 2: 0.9}
    )
    found = [(usage.directories, usage.is_cleaned) for usage in disk_usages(mounts, "/d")]
    assert found == [(("commitlog", "consumequeue"), True), ((".", "config"), False)]


@pytest.mark.parametrize("name", ["config", "consumequeue", "index"])
def test_a_directory_that_cannot_be_queried_hides_no_other(name):
    """Else puts would not be refused although the log's disk is full."""
    mounts = Mounts({"/d": 1, "/d/commitlog": 2, f"/d/{name}": 3}, {1: 0.5, 2: 0.9})
    found = [usage.directories for usage in disk_usages(mounts, "/d")]
    assert found == [("commitlog",), (".",)]
    for needed in ("/d", "/d/commitlog"):
        with pytest.raises(DiskError):
            disk_usages(attrs.evolve(mounts, devices={**mounts.devices, needed: 3}), "/d")


def test_a_file_system_is_named_by_what_of_the_store_is_on_it():
    """The one that holds the data directory and the log is simply the disk."""
    assert disk_name((".", "commitlog", "index")) == "disk"
    assert disk_name(("commitlog", "index")) == "disk of commitlog, index"
    assert disk_name((".", "config")) == "disk of config"
    assert disk_name((".",)) == "disk of the data directory"
