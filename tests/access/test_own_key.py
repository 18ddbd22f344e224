"""A node's own key is that of its file, whenever it is used."""

import attrs

from hastore.access.own_key import OwnKey
from hastore.env.real import real_env
from tests.support.env.fake_env import FakeOffload
from tests.support.nodes.access_keys import ADMIN_KEY, SECRET, USER_KEY, write_key

ENV = attrs.evolve(real_env(), offload=FakeOffload())


async def test_a_key_that_is_replaced_counts_at_once_and_one_with_a_fault_does_not(
    tmp_path, caplog
):
    """The former one is used as long as the file cannot be."""
    assert await OwnKey(ENV, None).read() is None
    path = tmp_path / "key.toml"
    own = OwnKey(ENV, write_key(path, ADMIN_KEY))
    assert await own.read() == ADMIN_KEY
    path.chmod(0o644)
    assert await own.read() == ADMIN_KEY
    (line,) = [record.msg for record in caplog.records]
    assert (line["event"], "has mode 0644" in line["reason"]) == ("own_key_not_read", True)
    write_key(path, USER_KEY)
    assert await own.read() == USER_KEY
    assert SECRET not in f"{own!r} {caplog.text}"
