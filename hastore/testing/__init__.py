"""Masters and slaves for your own test suite: a pytest plugin and its parts.

::

    def test_orders_survive_a_failover(hastore_cluster):
        cluster = hastore_cluster(slaves=1)
        assert cluster.master.put("orders", b"hello").ok
        cluster.master.kill()
        new = cluster.slaves[0].promote()
        assert [message.body for message in new.consume("orders")] == [b"hello"]

The nodes of a replica group (the fixture ``hastore_group``) have epochs: each may become master,
and a former master that comes back cuts off what was never acknowledged.

pytest finds the plugin (``pytest_hastore.plugin``) as soon as hastore is installed; without pytest,
use ``hastore.testing.cluster``.  To read the code, begin with ``node``.
"""
