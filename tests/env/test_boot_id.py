"""The name of a boot of the machine."""

import pytest

from hastore.env import real


def test_the_boot_id_is_the_same_for_every_environment_of_a_boot():
    """Linux draws it once a boot."""
    found = real.real_env().boot_id
    assert found is None or len(found) == 36
    assert real.real_env().boot_id == found


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_the_boot_id_is_unknown_where_the_kernel_does_not_have_it(content, monkeypatch, tmp_path):
    """Two unknown boots must not look like one: an empty name would be equal to itself."""
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(real, "_BOOT_ID_PATH", str(path))
    assert real.real_env().boot_id is None
