"""Requests to nsqds: over TLS, with a token, on kept connections."""

import asyncio
import re
from pathlib import Path

import uvloop
from tests.net.http_client.counting_server import counting_server
from tests.net.tls.certificates import Authority

from penstock.common.logs import Logger, LogLevel
from penstock.nsqadmin.daemon import Nsqadmin
from penstock.nsqadmin.options import NsqadminOptions
from penstock.testing.nsqadmin import run_nsqadmin
from penstock.testing.nsqd import run_nsqd

HTML = {"Accept": "text/html"}
TOKEN = "for-the-admin-alone"


def test_an_nsqd_that_requires_tls_is_queried_over_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.issue("server")
    with run_nsqd(
        "--tls-required=true",
        "--https-address=127.0.0.1:0",
        f"--tls-cert={server.cert}",
        f"--tls-key={server.key}",
    ) as nsqd:
        at = f"--nsqd-http-address={nsqd.http_address}"
        trust = f"--http-client-tls-root-ca-file={authority.root_ca}"
        (https,) = re.findall(r"HTTPS: listening on (\S+)", nsqd.log)
        with run_nsqadmin(at, trust) as trusting, run_nsqadmin(at) as strict:
            created = trusting.http("POST", "/api/topics", b'{"topic":"t"}')

            assert (200, {"message": ""}) == (created.status, created.json())
            assert ["t"] == trusting.http("GET", "/api/topics").json()["topics"]
            assert b"Retention" in trusting.http("GET", "/topics/t", headers=HTML).body
            history = trusting.http("GET", "/messages/t", headers=HTML)
            assert b"stores no messages" in history.body
            assert 502 == strict.http("GET", "/api/topics").status
        with run_nsqadmin(f"--nsqd-http-address=https://{https}", trust) as direct:
            topic = direct.http("GET", "/topics/t", headers=HTML).body.decode()
            (node,) = re.findall(r'href="(/nodes/[^"]+)"', topic)
            assert "Retention" in topic
            assert b"Drain" in direct.http("GET", node, headers=HTML).body


def test_an_nsqd_that_requires_a_token_gets_it(tmp_path: Path) -> None:
    (tmp_path / "nsqd").write_text(f"read,admin,consume {TOKEN}\n")
    (tmp_path / "admin").write_text(f"{TOKEN}\n")
    with run_nsqd(f"--http-auth-token-file={tmp_path / 'nsqd'}") as nsqd:
        at = f"--nsqd-http-address={nsqd.http_address}"
        token = f"--http-client-token-file={tmp_path / 'admin'}"
        with run_nsqadmin(at, token) as known, run_nsqadmin(at) as unknown:
            assert 200 == known.http("POST", "/api/topics", b'{"topic":"t"}').status
            page = known.http("GET", "/topics/t", headers=HTML)
            assert b"Retention" in page.body
            refused = unknown.http("GET", "/api/topics")
            assert 502 == refused.status
            assert "401" in refused.json()["message"]


def test_connections_to_nsqd_are_reused_and_closed_at_the_end() -> None:
    body = b'{"version":"1.3.0","tcp_port":1,"http_port":2,"topics":[]}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def scene() -> None:
        async with counting_server(answer) as nsqd, asyncio.timeout(60):
            options = NsqadminOptions(
                http_address="127.0.0.1:0", nsqd_http_addresses=(f"127.0.0.1:{nsqd.port}",)
            )
            nsqadmin = Nsqadmin(options, Logger("", LogLevel.FATAL))
            for _ in range(5):
                await nsqadmin.cluster.snapshot()
            assert (1, 5) == nsqd.counts
            await nsqadmin.stop()
            while nsqd.open_connections:  # noqa: ASYNC110 (there is no event)
                await asyncio.sleep(0.01)

    uvloop.run(scene())
