"""Start and stop of the process."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.protocol import lookup_v1
from penstock.testing.nsqlookupd import NsqlookupdStartError, run_nsqlookupd
from penstock.testing.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_with_open_connections(number: signal.Signals) -> None:
    with run_nsqlookupd() as nsqlookupd, ThreadPoolExecutor(1) as pool:
        node = nsqlookupd.node("n")
        lookup = pool.submit(nsqlookupd.http, "GET", "/lookup?topic=t&wait=30s")
        wait_until(
            lambda: b"waiting_lookups 1" in nsqlookupd.http("GET", "/metrics").body, "the lookup"
        )

        nsqlookupd.send_signal(number)

        assert 404 == lookup.result(120).status
        assert b"" == node.read_to_end()
        assert 0 == nsqlookupd.wait()
        assert "NSQLOOKUPD: bye" in nsqlookupd.log


def test_a_restart_clears_the_registry_and_nodes_can_register_again() -> None:
    with run_nsqlookupd() as nsqlookupd:
        nsqlookupd.node("n").call(lookup_v1.register("t"))
        nsqlookupd.restart()
        forgotten = nsqlookupd.http("GET", "/topics").body
        nsqlookupd.node("n").call(lookup_v1.register("t"))

        assert b'{"topics":[]}' == forgotten
        assert ["n"] == nsqlookupd.found("t")


def test_an_address_in_use_is_an_error_of_one_line() -> None:
    with run_nsqlookupd() as nsqlookupd:
        address = nsqlookupd.tcp_address

        with (
            pytest.raises(NsqlookupdStartError) as failure,
            run_nsqlookupd(f"--tcp-address={address}"),
        ):
            pass

        assert 1 == failure.value.exit_code
        assert f"FATAL: listen ({address}) failed - " in failure.value.log


def test_it_serves_on_unix_sockets(tmp_path: Path) -> None:
    http, tcp = tmp_path / "http.sock", tmp_path / "tcp.sock"
    with run_nsqlookupd(f"--http-address={http}", f"--tcp-address={tcp}"):
        assert http.is_socket()
        assert tcp.is_socket()
    assert not http.exists()
