"""Bearer tokens for the HTTP API: the file, the scopes, and an nsqd that requires tokens."""

import json
import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from penstock.common.errors import ConfigError
from penstock.common.logs import Logger
from penstock.nsqd.http_tokens import HttpTokens, Scope, scopes_for
from penstock.testing.nsqd import NsqdProcess, NsqdStartError, run_nsqd
from penstock.testing.waiting import wait_until

PUBLISH, CONSUME, READ, ADMIN = Scope.PUBLISH, Scope.CONSUME, Scope.READ, Scope.ADMIN

FILE = """
# who may do what
publish      pub-token
read,admin   ops-token
  consume    consume+token/1.2~3==
"""


def load(path: Path, content: str | bytes, *, mode: int = 0o600) -> tuple[HttpTokens, list[str]]:
    """The tokens of a file with this content, and the logged lines."""
    lines: list[str] = []
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return HttpTokens(str(path), Logger("", write=lines.append)), lines


class TestTokenFile:
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("", "contains no token"),
            ("# nobody\n\n", "contains no token"),
            ("s3cret", "line 1 must be scopes and a token"),
            ("read s3cret more", "line 1 must be scopes and a token"),
            ("read s3cret\n\nread s3cret=s3cret", "line 3 must be scopes and a token"),
            ("read s3crét", "line 1 must be scopes and a token"),
            ("s3cret read", "line 1 must begin with scopes"),
            ("read, s3cret", "line 1 must begin with scopes"),
            ("READ s3cret", "line 1 must begin with scopes"),
            (b"read s3cret\xff", "'utf-8' codec can't decode byte 0xff"),
            ("read s3cret\n" * 100_000, "longer than 1048576 bytes"),
        ],
    )
    def test_an_invalid_file_is_refused_without_quoting_it(
        self, tmp_path: Path, content: str | bytes, reason: str
    ) -> None:
        path = tmp_path / "tokens"

        with pytest.raises(ConfigError) as refusal:
            load(path, content)

        assert str(refusal.value).startswith(f"--http-auth-token-file: {path}: {reason}")
        assert "s3cr" not in str(refusal.value)

    @pytest.mark.parametrize("name", ["missing", "."])
    def test_an_unreadable_file_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ConfigError, match="--http-auth-token-file: "):
            HttpTokens(str(tmp_path / name), Logger(""))

    @pytest.mark.parametrize(
        ("mode", "is_exposed"),
        [(0o600, False), (0o400, False), (0o640, False), (0o604, True), (0o620, True)],
    )
    def test_a_file_that_other_users_can_read_or_change_is_warned_of(
        self, tmp_path: Path, mode: int, is_exposed: bool
    ) -> None:
        _, lines = load(tmp_path / "tokens", FILE, mode=mode)

        assert is_exposed == any(
            "users other than its owner can read or change it" in x for x in lines
        )

    def test_reloading_an_invalid_file_keeps_the_old_tokens(self, tmp_path: Path) -> None:
        tokens, _ = load(tmp_path / "tokens", FILE)
        (tmp_path / "tokens").write_text("nonsense")

        with pytest.raises(ConfigError):
            tokens.reload()

        assert frozenset([PUBLISH]) == tokens._scopes(b"pub-token")

    def test_a_token_on_two_lines_has_the_scopes_of_both(self, tmp_path: Path) -> None:
        tokens, _ = load(tmp_path / "tokens", "read both\npublish both\n")

        assert frozenset([READ, PUBLISH]) == tokens._scopes(b"both")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/ping", None),
        ("POST", "/pub", {PUBLISH}),
        ("POST", "/mpub", {PUBLISH}),
        ("GET", "/stats", {READ}),
        ("GET", "/metrics", {READ}),
        ("HEAD", "/info", {READ}),
        ("GET", "/config/log_level", {READ}),
        ("PUT", "/config/log_level", {ADMIN}),
        ("POST", "/topic/delete", {ADMIN}),
        ("POST", "/channel/seek", {ADMIN}),
        ("POST", "/channel/requeue", {ADMIN}),
        ("POST", "/client/close", {ADMIN}),
        ("POST", "/channel/create", {ADMIN, CONSUME}),
        ("POST", "/channel/commit", {CONSUME}),
        ("GET", "/topic/messages", {CONSUME}),
        ("GET", "/channel/messages", {CONSUME}),
        ("GET", "/topic/log", {CONSUME, READ}),
        ("GET", "/topics/log", {CONSUME, READ}),
        ("GET", "/nobody/knows", {READ}),
        ("BREW", "/coffee", {ADMIN}),
    ],
)
def test_the_scopes_of_requests(method: str, path: str, expected: set[Scope] | None) -> None:
    assert expected == scopes_for(method, path)


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def nsqd(token_file: Path) -> Iterator[NsqdProcess]:
    with run_nsqd(f"--http-auth-token-file={token_file}") as process:
        yield process


def ask(
    nsqd: NsqdProcess, method: str, target: str, authorization: str | None = None, body: bytes = b""
) -> tuple[int, str, bytes]:
    """The status, the challenge and the body of the response."""
    connection = HTTPConnection(nsqd.http_address, timeout=60)
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return response.status, response.getheader("WWW-Authenticate", ""), response.read()
    finally:
        connection.close()


NO_TOKEN = (401, 'Bearer realm="nsqd"', b'{"message":"UNAUTHORIZED"}')
UNKNOWN = (401, 'Bearer realm="nsqd", error="invalid_token"', b'{"message":"UNAUTHORIZED"}')
OUT_OF_SCOPE = (403, 'Bearer realm="nsqd", error="insufficient_scope"', b'{"message":"FORBIDDEN"}')


class TestNsqdWithTokens:
    @pytest.mark.parametrize(
        ("authorization", "expected"),
        [
            (None, NO_TOKEN),
            ("", NO_TOKEN),
            ("pub-token", NO_TOKEN),
            ("Basic pub-token", NO_TOKEN),
            ("Bearer", NO_TOKEN),
            ("Bearer pub-token, Bearer pub-token", NO_TOKEN),
            ("Bearer pub-toke", UNKNOWN),
            ("Bearer pub-token2", UNKNOWN),
            ("Bearer ops-token", OUT_OF_SCOPE),
            ("Bearer pub-token", (200, "", b"OK")),
            ("bearer  pub-token", (200, "", b"OK")),
        ],
    )
    def test_publishing_needs_a_token_with_its_scope(
        self, nsqd: NsqdProcess, authorization: str | None, expected: tuple[int, str, bytes]
    ) -> None:
        assert expected == ask(nsqd, "POST", "/pub?topic=t", authorization, b"hello")

    @pytest.mark.parametrize(
        ("method", "target", "token", "status"),
        [
            ("GET", "/ping", None, 200),
            ("GET", "/stats", None, 401),
            ("GET", "/stats", "ops-token", 200),
            ("GET", "/stats", "pub-token", 403),
            ("GET", "/%73tats", "pub-token", 403),
            ("POST", "/topic/create?topic=made", "ops-token", 200),
            ("POST", "/topic/create?topic=made", "pub-token", 403),
            ("POST", "/topic/delete?topic=made", "consume+token/1.2~3==", 403),
            ("PUT", "/config/log_level", "pub-token", 403),
            ("GET", "/nobody/knows", None, 401),
            ("GET", "/nobody/knows", "ops-token", 404),
        ],
    )
    def test_each_request_needs_its_scope(
        self, nsqd: NsqdProcess, method: str, target: str, token: str | None, status: int
    ) -> None:
        authorization = None if token is None else f"Bearer {token}"

        assert status == ask(nsqd, method, target, authorization)[0]

    def test_a_request_without_a_token_is_refused_before_its_body(self, nsqd: NsqdProcess) -> None:
        connection = HTTPConnection(nsqd.http_address, timeout=60)
        connection.putrequest("POST", "/pub?topic=t")
        connection.putheader("Content-Length", "1000000")
        connection.putheader("Expect", "100-continue")
        connection.endheaders()

        assert 401 == connection.getresponse().status
        connection.close()

    def test_a_refused_message_is_not_published(self, nsqd: NsqdProcess) -> None:
        ask(nsqd, "POST", "/pub?topic=refused", None, b"hello")
        stats = ask(nsqd, "GET", "/stats?format=json", "Bearer ops-token")[2]

        assert "refused" not in [topic["topic_name"] for topic in json.loads(stats)["topics"]]

    def test_tokens_are_never_logged(self, nsqd: NsqdProcess) -> None:
        ask(nsqd, "GET", "/stats", "Bearer ops-token")
        ask(nsqd, "GET", "/stats", "Bearer mistyped-token")

        assert "-token" not in nsqd.log.replace("http-auth-token-file", "")


def test_sighup_reloads_the_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("read old\n")
    path.chmod(0o600)
    with run_nsqd(f"--http-auth-token-file={path}") as nsqd:

        def status(token: str) -> int:
            return ask(nsqd, "GET", "/stats", f"Bearer {token}")[0]

        assert [200, 401] == [status("old"), status("new")]

        path.write_text("read new\n")
        nsqd.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP, tokens reloaded" in nsqd.log, "the tokens to be reloaded")
        assert [401, 200] == [status("old"), status("new")]

        path.write_text("broken\n")
        nsqd.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old tokens stay in use - " in nsqd.log, "the file to be refused")
        assert 200 == status("new")


def test_nsqd_does_not_start_without_valid_tokens(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(0o600)

    with (
        pytest.raises(NsqdStartError) as failure,
        run_nsqd(f"--http-auth-token-file={tmp_path / 'empty'}"),
    ):
        pass

    assert 1 == failure.value.exit_code
    (line,) = [line for line in failure.value.log.splitlines() if "token" in line]
    assert line.endswith("empty: contains no token")
    assert "Traceback" not in failure.value.log
