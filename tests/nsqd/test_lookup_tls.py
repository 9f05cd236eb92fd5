"""nsqd and an nsqlookupd that requires TLS and a client certificate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.net.tls.certificates import Authority

from penstock.common.errors import ConfigError
from penstock.net.tls import client_context
from penstock.nsqd import settings
from penstock.nsqd.options import NsqdOptions
from penstock.protocol import lookup_v1
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.nsqlookupd import NsqlookupdProcess, run_nsqlookupd
from penstock.testing.waiting import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def encrypted(authority: Authority) -> Iterator[NsqlookupdProcess]:
    server = authority.issue("server")
    with run_nsqlookupd(
        "--broadcast-address=127.0.0.1",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
        f"--tls-root-ca-file={authority.root_ca}",
        "--tls-client-auth-policy=require-verify",
    ) as nsqlookupd:
        yield nsqlookupd


def channels(nsqd: NsqdProcess, topic: str) -> list[str]:
    return [channel["channel_name"] for channel in nsqd.stats(topic)["channels"]]


def test_it_registers_and_looks_up_channels(
    authority: Authority, encrypted: NsqlookupdProcess
) -> None:
    ours = authority.issue("nsqd")
    with run_nsqd(
        "--https-address=",
        f"--lookupd-tcp-address={encrypted.tcp_address}",
        "--lookupd-tls",
        f"--lookupd-tls-root-ca-file={authority.root_ca}",
        f"--tls-cert={ours.cert}",
        f"--tls-key={ours.key}",
    ) as nsqd:
        wait_until(lambda: "): connected" in nsqd.log, "nsqd to connect")
        other = encrypted.connect(
            tls=client_context(root_ca=authority.root_ca, cert=ours.cert, key=ours.key)
        )
        other.identify(broadcast_address="another")
        assert b"OK" == other.call(lookup_v1.register("orders", "billing"))

        nsqd.post("/topic/create?topic=orders")

        wait_until(lambda: channels(nsqd, "orders") == ["billing"], "the other node's channel")


def test_an_untrusted_certificate_is_logged_in_one_line(encrypted: NsqlookupdProcess) -> None:
    with run_nsqd(f"--lookupd-tcp-address={encrypted.tcp_address}", "--lookupd-tls") as nsqd:
        wait_until(lambda: "certificate verify failed" in nsqd.log, "nsqd to say so")


def test_a_missing_root_ca_is_a_clear_error(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.pem")
    with pytest.raises(ConfigError, match="absent"):
        settings.lookupd_tls(NsqdOptions(lookupd_tls=True, lookupd_tls_root_ca_file=absent))
