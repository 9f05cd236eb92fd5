"""Limits on connections."""

from penstock.net.connection_limits import ConnectionLimits


def test_no_connection_is_rejected_without_limits() -> None:
    limits = ConnectionLimits()
    for _ in range(3):
        assert limits.rejection("10.0.0.1") is None
        limits.add("10.0.0.1")

    assert 3 == limits.total


def test_the_total_is_limited() -> None:
    limits = ConnectionLimits(total_max=2)
    limits.add("10.0.0.1")
    limits.add("")

    assert "too many connections, the limit is 2" == limits.rejection("10.0.0.2")

    limits.remove("10.0.0.1")
    assert limits.rejection("10.0.0.2") is None


def test_each_address_is_limited() -> None:
    limits = ConnectionLimits(per_address_max=1)
    limits.add("10.0.0.1")

    assert "too many connections from 10.0.0.1, the limit is 1" == limits.rejection("10.0.0.1")
    assert limits.rejection("10.0.0.2") is None

    limits.remove("10.0.0.1")
    assert limits.rejection("10.0.0.1") is None


def test_unix_sockets_have_no_limit_per_address() -> None:
    limits = ConnectionLimits(per_address_max=1)
    limits.add("")

    assert limits.rejection("") is None
