"""The helper that runs nsqlookupd: what it promises to those who test with it."""

import os

import pytest

from penstock.common.errors import ProtocolError
from penstock.protocol import lookup_v1
from penstock.testing.nsqlookupd import NsqlookupdStartError, run_nsqlookupd


def test_it_serves_when_the_block_begins_and_is_gone_when_it_ends() -> None:
    with run_nsqlookupd() as nsqlookupd:
        pid = nsqlookupd.pid
        nsqlookupd.node("n").call(lookup_v1.register("t"))
        assert ["n"] == nsqlookupd.found("t")
        assert [] == nsqlookupd.found("unknown")

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "bye" in nsqlookupd.log


def test_it_says_why_it_did_not_start() -> None:
    with pytest.raises(NsqlookupdStartError) as failure, run_nsqlookupd("--no-such-flag"):
        pass

    assert 2 == failure.value.exit_code
    assert "no-such-flag" in str(failure.value)


def test_it_comes_back_where_it_was() -> None:
    with run_nsqlookupd() as nsqlookupd:
        addresses = nsqlookupd.tcp_address, nsqlookupd.http_address
        nsqlookupd.kill()
        nsqlookupd.restart()

        assert addresses == (nsqlookupd.tcp_address, nsqlookupd.http_address)
        assert 200 == nsqlookupd.http("GET", "/ping").status


def test_a_refused_command_and_a_lost_connection_are_told_apart() -> None:
    with run_nsqlookupd() as nsqlookupd:
        node = nsqlookupd.node("n")
        with pytest.raises(ProtocolError, match="E_BAD_TOPIC"):
            node.call(lookup_v1.register("!"))
        with pytest.raises(ConnectionError):
            node.response()


def test_an_address_where_nobody_listens_is_refused() -> None:
    with run_nsqlookupd() as nsqlookupd:
        nsqlookupd.kill()

        with pytest.raises(ConnectionRefusedError):
            nsqlookupd.connect()
