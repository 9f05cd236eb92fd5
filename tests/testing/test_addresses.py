"""A port that is kept for whoever is told of it."""

import pytest

from penstock.testing.addresses import reserved_address
from penstock.testing.nsqd import run_nsqd
from penstock.testing.raw_client import RawClient


def test_nobody_listens_there_before_or_between_but_one_can_come_and_come_back() -> None:
    with reserved_address() as address:
        with pytest.raises(ConnectionRefusedError):
            RawClient(address)
        with run_nsqd(f"--tcp-address={address}") as nsqd:
            nsqd.publish("t", b"x")
            nsqd.kill()
            with pytest.raises(ConnectionRefusedError):
                RawClient(address)
            nsqd.restart()

            assert address == nsqd.tcp_address
            assert b"x" == nsqd.consumer("t", "c").message().body


def test_two_are_never_the_same() -> None:
    with reserved_address() as one, reserved_address() as other:
        assert one != other
