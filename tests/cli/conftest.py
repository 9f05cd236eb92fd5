"""One nsqd and one nsqlookupd for all tests of a module; each test uses its own topics."""

from collections.abc import Iterator

import pytest

from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with run_nsqlookupd() as running:
        yield running


@pytest.fixture(scope="module")
def nsqd(nsqlookupd: NsqlookupdProcess) -> Iterator[NsqdProcess]:
    with run_nsqd(
        f"--lookupd-tcp-address={nsqlookupd.tcp_address}",
        "--broadcast-address=127.0.0.1",
        "--retention-time=1h",
    ) as running:
        yield running
