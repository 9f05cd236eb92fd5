"""Queries to auth servers, their responses, and the permissions that follow."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from tests.nsqd.auth_server import AuthServer, auth_server

from penstock.common.clock import SECOND_NS
from penstock.common.errors import AuthError, ConfigError, ProtocolError
from penstock.common.logs import Logger, LogLevel
from penstock.nsqd import auth
from penstock.nsqd.auth import Authenticator, Authorizations, parse_reply
from penstock.nsqd.options import NsqdOptions
from penstock.testing.clock import ManualClock

ALLOWS_ALL = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
GOOD = {
    "ttl": 60,
    "identity": "bob",
    "identity_url": "http://x?a&b",
    "authorizations": [ALLOWS_ALL],
}


def authorizations(*entries: Mapping[str, object]) -> Authorizations:
    return parse_reply(json.dumps({"ttl": 1, "authorizations": entries}).encode(), 0)


class TestResponses:
    def test_a_valid_response_is_parsed(self) -> None:
        kept = parse_reply(json.dumps(GOOD).encode(), now_ns=5)

        assert ("bob", "http://x?a&b", 60, 1) == (
            kept.identity,
            kept.identity_url,
            kept.ttl_seconds,
            kept.count,
        )
        assert not kept.is_expired(4 + 60 * SECOND_NS)
        assert kept.is_expired(5 + 60 * SECOND_NS)

    def test_the_response_to_auth_is_the_references(
        self,
    ) -> None:
        expected = rb'{"identity":"bob","identity_url":"http://x?a\u0026b","permission_count":1}'

        assert expected == parse_reply(json.dumps(GOOD).encode(), 0).response()

    @pytest.mark.parametrize("reply", ['{"ttl":1}', '{"ttl":1,"authorizations":null,"more":0}'])
    def test_a_response_without_authorizations_allows_nothing(self, reply: str) -> None:
        kept = parse_reply(reply.encode(), 0)

        assert 0 == kept.count
        assert not kept.allows_publish("t")

    @pytest.mark.parametrize(
        "reply",
        [
            b"",
            b"null",
            b"[]",
            b"<html>",
            b"[" * 100_000,
            b'{"ttl":"60"}',
            b"{}",
            b'{"ttl":0}',
            b'{"ttl":-1}',
            b'{"ttl":1.5}',
            b'{"ttl":60.0}',
            b'{"ttl":true}',
            b'{"ttl":null}',
            b'{"ttl":9223372036854775808}',
            b'{"ttl":1' + b"0" * 5000 + b"}",
            b'{"ttl":1,"identity":5}',
            b'{"ttl":1,"authorizations":{}}',
            b'{"ttl":1,"authorizations":[null]}',
            b'{"ttl":1,"authorizations":[{"permissions":["destroy"]}]}',
            b'{"ttl":1,"authorizations":[{"permissions":"publish"}]}',
            b'{"ttl":1,"authorizations":[{"topic":"("}]}',
            b'{"ttl":1,"authorizations":[{"channels":["[z-a]"]}]}',
            b'{"ttl":1,"authorizations":[{"topic":"(?=lookahead)"}]}',
        ],
    )
    def test_an_invalid_response_is_refused(self, reply: bytes) -> None:
        with pytest.raises(ValueError, match=r".+"):
            parse_reply(reply, 0)

    def test_the_longest_ttl_does_not_overflow(self) -> None:
        assert not parse_reply(b'{"ttl":9223372036854775807}', 0).is_expired(1 << 63)


class TestPermissions:
    def test_expressions_match_anywhere_in_a_name(self) -> None:
        kept = authorizations({**ALLOWS_ALL, "topic": "orders", "channels": ["", "x"]})

        assert kept.allows_publish("my-orders-2")
        assert kept.allows_subscribe("my-orders-2", "any")
        assert not kept.allows_publish("order")

    def test_a_dollar_matches_only_the_end(self) -> None:
        kept = authorizations({**ALLOWS_ALL, "topic": "^orders$"})

        assert [True, False] == [kept.allows_publish(name) for name in ("orders", "orders2")]

    @pytest.mark.parametrize(
        ("channels", "allowed"), [([".*"], True), (["^$"], True), ([], False), (["^x$"], False)]
    )
    def test_publishing_needs_a_channel_pattern_that_matches_the_empty_name(
        self, channels: list[str], allowed: bool
    ) -> None:
        assert allowed == authorizations({**ALLOWS_ALL, "channels": channels}).allows_publish("t")

    @pytest.mark.parametrize("permission", ["publish", "subscribe"])
    def test_permissions_are_independent(self, permission: str) -> None:
        kept = authorizations({**ALLOWS_ALL, "permissions": [permission]})

        assert (permission == "publish") == kept.allows_publish("t")
        assert (permission == "subscribe") == kept.allows_subscribe("t", "c")

    def test_a_single_authorization_must_allow_the_whole_request(self) -> None:
        kept = authorizations(
            {"topic": "^a$", "channels": ["^b$"], "permissions": ["subscribe"]},
            {"topic": "^c$", "channels": ["^d$"], "permissions": ["subscribe"]},
        )

        asked = [("a", "b"), ("c", "d"), ("a", "d"), ("c", "b")]
        assert [True, True, False, False] == [kept.allows_subscribe(*names) for names in asked]

    def test_a_decision_is_the_same_when_repeated(self) -> None:
        kept = authorizations({**ALLOWS_ALL, "topic": "^a"})

        for _ in range(2):
            assert kept.allows_publish("a")
            assert not kept.allows_publish("b")
            assert kept.allows_subscribe("a", "c")
            assert not kept.allows_subscribe("b", "c")

    def test_the_cache_of_decisions_is_bounded(self) -> None:
        kept = authorizations(ALLOWS_ALL)

        for number in range(auth.CACHED_DECISIONS_MAX + 1):
            kept.allows_publish(f"t{number}")

        assert len(kept._decisions) <= auth.CACHED_DECISIONS_MAX


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (auth.auth_disabled(), "E_AUTH_DISABLED AUTH disabled"),
        (auth.auth_already_set(), "E_INVALID AUTH already set"),
        (auth.auth_failed(), "E_AUTH_FAILED AUTH failed"),
        (auth.no_authorizations(), "E_UNAUTHORIZED AUTH no authorizations found"),
        (auth.auth_first("PUB"), "E_AUTH_FIRST AUTH required before PUB"),
        (auth.unauthorized("PUB", "t"), 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'),
        (auth.unauthorized("SUB", "t", "c"), 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'),
    ],
)
def test_errors_of_refused_clients(error: ProtocolError, text: str) -> None:
    assert text == str(error)
    assert error.fatal


class Query:
    """One query, with its log lines and the time that it took."""

    def __init__(self, *addresses: str, **options: Any) -> None:
        self.options = NsqdOptions(auth_http_addresses=addresses, **options)
        self.log_lines: list[str] = []
        self.seconds = 0.0

    def run(self, secret: bytes = b"sec", **client: Any) -> Authorizations:
        """Raises AuthError."""
        return uvloop.run(self._scene(secret, {"remote_ip": "1.2.3.4", "tls": False, **client}))

    async def _scene(self, secret: bytes, client: dict[str, Any]) -> Authorizations:
        log = Logger("", LogLevel.INFO, write=self.log_lines.append)
        authenticator = Authenticator(self.options, ManualClock(), log)
        started = time.monotonic()
        try:
            return await authenticator.query(secret, **client)
        finally:
            self.seconds = time.monotonic() - started


class TestQueries:
    def test_by_get(self) -> None:
        with auth_server(GOOD) as server:
            kept = Query(server.address).run(
                b"s e&c\xff", remote_ip="::1", tls=True, common_name="a b"
            )

        (asked,) = server.asked
        assert "bob" == kept.identity
        assert "GET" == asked.method
        assert "/auth?common_name=a+b&remote_ip=%3A%3A1&secret=s+e%26c%FF&tls=true" == asked.target
        assert "application/vnd.nsq; version=1.0" == asked.headers["Accept"]

    def test_by_post(self) -> None:
        with auth_server(GOOD) as server:
            kept = Query(server.address, auth_http_request_method="post").run(remote_ip="")

        (asked,) = server.asked
        assert "bob" == kept.identity
        assert ("POST", "/auth") == (asked.method, asked.target)
        assert "application/json" == asked.headers["Content-Type"]
        assert (
            b'{"common_name":[""],"remote_ip":[""],"secret":["sec"],"tls":["false"]}' == asked.body
        )

    @pytest.mark.parametrize(
        ("path", "expected"), [("/who?x=y", "/who?x=y&common_name="), ("", "/?common_name=")]
    )
    def test_a_url_is_used_unchanged(self, path: str, expected: str) -> None:
        with auth_server(GOOD) as server:
            Query(f"http://{server.address}{path}").run()

        assert server.asked[0].target.startswith(expected)

    def test_https_with_the_ca_file(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)

        with auth_server(GOOD, context=context) as server:
            address = f"https://{server.address}/auth"
            kept = Query(address, tls_root_ca_file=str(tmp_path / "ca.pem")).run()
            unverified = Query(address)
            with pytest.raises(AuthError):
                unverified.run()

        assert "bob" == kept.identity
        assert "certificate verify failed" in unverified.log_lines[0]

    def test_an_invalid_ca_file_is_an_error_at_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "empty.pem").touch()
        for name in ("missing.pem", "empty.pem"):
            options = NsqdOptions(auth_http_addresses=("a",), tls_root_ca_file=str(tmp_path / name))
            with pytest.raises(ConfigError, match="--tls-root-ca-file: "):
                Authenticator(options, ManualClock(), Logger("", LogLevel.INFO))

    def test_without_a_server_auth_is_disabled(self) -> None:
        log = Logger("", LogLevel.INFO)
        one = NsqdOptions(auth_http_addresses=("a",))

        assert not Authenticator(NsqdOptions(), ManualClock(), log).is_enabled
        assert Authenticator(one, ManualClock(), log).is_enabled


def fails(server: AuthServer, *, timeout_ns: int = 10 * SECOND_NS) -> Query:
    """The logged reason of a query without a valid response."""
    query = Query(
        server.address,
        http_client_connect_timeout_ns=timeout_ns,
        http_client_request_timeout_ns=timeout_ns,
    )
    with pytest.raises(AuthError, match="no auth server gave a valid response"):
        query.run()
    return query


class TestBadServers:
    @pytest.mark.parametrize(
        ("status", "answer", "reason"),
        [
            (403, b"no", "got response 403 'no'"),
            (500, GOOD, "got response 500"),
            (200, b"nonsense", "invalid response: "),
            (200, {**GOOD, "ttl": 0}, "invalid response: "),
            (200, b" " * 1_000_000, "response larger than 262144 bytes"),
        ],
    )
    def test_an_invalid_response_fails_the_query(
        self, status: int, answer: object, reason: str
    ) -> None:
        with auth_server(answer) as server:
            server.status = status
            (line,) = fails(server).log_lines

        assert f"failed auth against http://{server.address}/auth: " in line
        assert reason in line
        assert "secret" not in line

    def test_a_hanging_server_times_out(self) -> None:
        with auth_server(GOOD) as server:
            server.is_silent = True
            query = fails(server, timeout_ns=SECOND_NS // 2)

        assert "timed out" in query.log_lines[0]
        assert 0.4 < query.seconds

    def test_a_dead_server_fails_before_the_timeout(self) -> None:
        with auth_server(GOOD) as server:
            pass
        query = fails(server, timeout_ns=3600 * SECOND_NS)

        assert "Connection refused" in query.log_lines[0]

    def test_thousands_of_expressions_are_compiled_outside_the_loop(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise other clients would have to wait."""
        threads = []

        def parse(body: bytes, now_ns: int) -> Authorizations:
            threads.append(threading.current_thread())
            return parse_reply(body, now_ns)

        monkeypatch.setattr(auth, "parse_reply", parse)
        entries = [{**ALLOWS_ALL, "topic": f"^(a+)+{number}$"} for number in range(2500)]
        with auth_server({**GOOD, "authorizations": entries}) as server:
            assert len(entries) == Query(server.address).run().count

        (thread,) = threads
        assert threading.main_thread() is not thread

    def test_the_first_valid_response_is_used(self) -> None:
        with socket.socket() as dead, auth_server(b"nonsense") as bad, auth_server(GOOD) as good:
            dead.bind(("127.0.0.1", 0))
            addresses = (f"127.0.0.1:{dead.getsockname()[1]}", bad.address, good.address)
            options = NsqdOptions(auth_http_addresses=addresses)

            async def scene() -> list[Authorizations]:
                silent = Logger("", LogLevel.FATAL)
                authenticator = Authenticator(options, ManualClock(), silent)
                query = authenticator.query
                return [await query(b"", remote_ip="", tls=False) for _ in range(60)]

            assert ["bob"] * 60 == [kept.identity for kept in uvloop.run(scene())]

        # A query that starts with the valid server sends no other; two of three start elsewhere.
        assert 60 == len(good.asked)
        assert 0 < len(bad.asked) < 60
