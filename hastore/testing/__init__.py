"""Masters and slaves for anybody's test suite: a pytest plugin, and what it is made of.

::

    def test_orders_survive_a_failover(hastore_cluster):
        cluster = hastore_cluster(slaves=1)
        assert cluster.master.put("orders", b"hello").ok
        cluster.master.kill()
        new = cluster.slaves[0].promote()
        assert [message.body for message in new.consume("orders")] == [b"hello"]

The plugin (``pytest_hastore.plugin``) is found by pytest as soon as hastore is installed; without
pytest there is ``hastore.testing.cluster``.
"""
