"""Access control, notifications and limits."""

import os
import signal
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.nsqadmin.fake_servers import recording_server, unused_address

from penstock.testing.nsqadmin import NsqadminProcess, NsqadminStartError, run_nsqadmin
from penstock.testing.nsqd import NsqdProcess, run_nsqd
from penstock.testing.waiting import wait_until

CREATE = b'{"topic":"orders"}'
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TOKEN = "0123456789abcdef-token"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd() as process:
        yield process


@pytest.fixture(scope="module")
def nsqadmin(nsqd: NsqdProcess) -> Iterator[NsqadminProcess]:
    with run_nsqadmin(f"--nsqd-http-address={nsqd.http_address}") as process:
        yield process


@pytest.fixture(scope="module")
def guarded(nsqd: NsqdProcess) -> Iterator[NsqadminProcess]:
    with run_nsqadmin(
        f"--nsqd-http-address={nsqd.http_address}",
        "--admin-user=ann",
        "--admin-user=bob",
        "--acl-http-header=X-User",
    ) as process:
        yield process


class TestAdmins:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"X-User": "bob"}, 200),
            ({"X-User": "eve"}, 403),
            ({"X-User": "Bob"}, 403),
            ({"X-Forwarded-User": "bob"}, 403),
            ({}, 403),
        ],
    )
    def test_only_admins_make_changes(
        self, guarded: NsqadminProcess, headers: dict[str, str], status: int
    ) -> None:
        assert status == guarded.http("POST", "/api/topics", CREATE, headers).status

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/api/topics"),
            ("POST", "/api/topics/t"),
            ("DELETE", "/api/topics/t"),
            ("POST", "/api/topics/t/c"),
            ("DELETE", "/api/topics/t/c"),
            ("DELETE", "/api/nodes/n"),
        ],
    )
    def test_every_change_requires_an_admin(
        self, guarded: NsqadminProcess, method: str, path: str
    ) -> None:
        answer = guarded.http(method, path)

        assert (403, {"message": "FORBIDDEN"}) == (answer.status, answer.json())

    def test_every_user_may_read(self, guarded: NsqadminProcess) -> None:
        assert 200 == guarded.http("GET", "/api/topics").status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://{host}.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://front.example", "X-Forwarded-Host": "front.example"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://front.example"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://{host}"}, 403),
    ],
)
def test_requests_of_other_sites_change_nothing(
    nsqadmin: NsqadminProcess, headers: dict[str, str], status: int
) -> None:
    sent = {name: value.format(host=nsqadmin.http_address) for name, value in headers.items()}

    assert status == nsqadmin.http("POST", "/api/topics", CREATE, sent).status


class TestHosts:
    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1:{port}",
            "[::1]:{port}",
            "localhost:{port}",
            "nsqadmin:{port}",
            "admin.prod.internal:{port}",
            f"{os.uname().nodename}:{{port}}",
            "admin.example.com",
            "admin.example.com:8443",
            "localhost:" + 5000 * "9",
            "",
        ],
    )
    def test_addresses_private_names_and_proxies_are_served(
        self, nsqadmin: NsqadminProcess, host: str
    ) -> None:
        assert 200 == self.status(nsqadmin, host)

    @pytest.mark.parametrize(
        "host", ["evil.example:{port}", "127.0.0.1.evil.example:{port}", "EVIL.example.:{port}"]
    )
    def test_a_public_name_with_our_port_is_refused(
        self, nsqadmin: NsqadminProcess, host: str
    ) -> None:
        headers = {"Host": host.format(port=port_of(nsqadmin))}
        change = {**headers, "Origin": f"http://{headers['Host']}"}
        looked = nsqadmin.http("GET", "/api/topics", headers=headers)

        assert 403 == looked.status
        assert looked.json()["message"].startswith("HOST_NOT_ALLOWED: ")
        assert "--allowed-host=" in looked.json()["message"]
        assert 403 == nsqadmin.http("POST", "/api/topics", CREATE, change).status
        assert (200, b"OK") == nsqadmin.http("GET", "/ping", headers=headers)

    @pytest.mark.parametrize(
        ("allowed", "host", "status"),
        [
            ("admin.example.com", "admin.example.com:{port}", 200),
            ("admin.example.com", "Admin.Example.com", 200),
            ("admin.example.com", "localhost:{port}", 200),
            ("admin.example.com", "evil.example", 403),
            ("admin.example.com", "evil.example:8080", 403),
            ("*.example.com", "a.b.example.com:{port}", 200),
            ("*.example.com", "example.com.evil.example:{port}", 403),
            ("*", "evil.example:{port}", 200),
        ],
    )
    def test_with_a_list_only_allowed_public_names_are_served(
        self, nsqd: NsqdProcess, allowed: str, host: str, status: int
    ) -> None:
        flags = (f"--nsqd-http-address={nsqd.http_address}", f"--allowed-host={allowed}")
        with run_nsqadmin(*flags) as process:
            assert status == self.status(process, host)

    def status(self, nsqadmin: NsqadminProcess, host: str) -> int:
        headers = {"Host": host.format(port=port_of(nsqadmin))}
        return nsqadmin.http("GET", "/api/topics", headers=headers).status


def port_of(nsqadmin: NsqadminProcess) -> str:
    return nsqadmin.http_address.rpartition(":")[2]


@pytest.fixture(scope="module")
def closed(
    nsqd: NsqdProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NsqadminProcess]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"# ours\n\n{TOKEN}\n")
    with run_nsqadmin(
        f"--nsqd-http-address={nsqd.http_address}", f"--auth-token-file={tokens}"
    ) as process:
        yield process


class TestLogin:
    def test_a_request_without_a_token_is_refused(self, closed: NsqadminProcess) -> None:
        answer = closed.http("GET", "/api/topics")

        assert (401, {"message": "UNAUTHORIZED"}) == (answer.status, answer.json())
        assert 200 == closed.http("GET", "/ping").status

    @pytest.mark.parametrize("host", ["x/static/y?", "x/ping#", "x/login?"])
    def test_the_host_header_cannot_bypass_the_login(
        self, closed: NsqadminProcess, host: str
    ) -> None:
        assert 401 == closed.http("GET", "/api/topics", headers={"Host": host}).status

    @pytest.mark.parametrize(("token", "status"), [(TOKEN, 200), (TOKEN[:-1], 401), ("", 401)])
    def test_scripts_send_the_token_as_bearer(
        self, closed: NsqadminProcess, token: str, status: int
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"}

        assert status == closed.http("GET", "/api/topics", headers=headers).status

    @pytest.mark.parametrize(
        "cookie", ["", "x", "9999999999.00", "1.0", ".", "٣.x", f"9999999999.{'0' * 64}"]
    )
    def test_a_forged_session_is_refused(self, closed: NsqadminProcess, cookie: str) -> None:
        headers = {"Cookie": f"nsqadmin_session={cookie}".encode().decode("latin-1")}

        assert 401 == closed.http("GET", "/api/topics", headers=headers).status

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ("# nothing", "the file contains no token"),
            ("short", "a token must have at least 16 characters and no spaces"),
            (f"{TOKEN} {TOKEN}", "a token must have at least 16 characters and no spaces"),
        ],
    )
    def test_an_invalid_token_file_is_refused(
        self, nsqd: NsqdProcess, tmp_path: Path, content: str, why: str
    ) -> None:
        (tmp_path / "tokens").write_text(content)
        flags = (
            f"--nsqd-http-address={nsqd.http_address}",
            f"--auth-token-file={tmp_path / 'tokens'}",
        )
        with pytest.raises(NsqadminStartError) as refused, run_nsqadmin(*flags):
            pass

        assert why in refused.value.log
        assert content not in refused.value.log


def notification_flags(nsqd: NsqdProcess, url: str) -> list[str]:
    """Flags of an nsqadmin for this nsqd that sends notifications to this URL."""
    return [f"--nsqd-http-address={nsqd.http_address}", f"--notification-http-endpoint={url}"]


class TestNotifications:
    def test_notifications_contain_the_user_and_the_change(self, nsqd: NsqdProcess) -> None:
        with (
            recording_server() as (url, kept),
            run_nsqadmin(*notification_flags(nsqd, url)) as nsqadmin,
        ):
            basic = b64encode(b"ann:secret").decode()
            headers = {"Authorization": f"Basic {basic}", "User-Agent": "a script"}
            nsqadmin.http("POST", "/api/topics", b'{"topic":"t","channel":"c"}', headers)
            nsqadmin.http("POST", "/api/topics/t/c", b'{"action":"pause"}', headers)
            client = nsqd.consumer("t", "c").local_address
            form = {"topic": "t", "channel": "c", "client": client}
            body = urlencode({**form, "node": nsqd.http_address}).encode()
            nsqadmin.http("POST", "/actions/kick", body, FORM)
            secure = {"X-Scheme": "https"}
            nsqadmin.http("DELETE", "/api/topics/t?really=yes", headers=secure)
            wait_until(lambda: len(kept) == 5, "five notifications")
            address = nsqadmin.http_address

        actions = ["create_topic", "create_channel", "pause_channel", "kick_client", "delete_topic"]
        assert actions == [each["action"] for each in kept]
        paused = kept[2]
        assert [
            *("action", "topic", "channel", "timestamp", "user"),
            *("remote_ip", "user_agent", "url", "via"),
        ] == list(paused)
        assert ("t", "c", "ann", "a script") == (
            paused["topic"],
            paused["channel"],
            paused["user"],
            paused["user_agent"],
        )
        assert f"http://{address}/api/topics/t/c" == paused["url"]
        assert os.uname().nodename == paused["via"]
        assert (client, nsqd.http_address) == (kept[3]["client"], kept[3]["node"])
        assert f"https://{address}/api/topics/t?really=yes" == kept[4]["url"]
        assert "user" not in kept[4]

    def test_a_failing_endpoint_does_not_affect_requests(self, nsqd: NsqdProcess) -> None:
        with run_nsqadmin(*notification_flags(nsqd, f"http://{unused_address()}/")) as nsqadmin:
            assert 200 == nsqadmin.http("POST", "/api/topics", CREATE).status
            wait_until(lambda: "failed to POST notification" in nsqadmin.log, "the failure's line")
            assert 200 == nsqadmin.http("GET", "/ping").status

    def test_queued_notifications_are_sent_before_the_stop(self, nsqd: NsqdProcess) -> None:
        begin = threading.Event()
        with (
            recording_server(begin) as (url, kept),
            run_nsqadmin(*notification_flags(nsqd, url)) as nsqadmin,
        ):
            for topic in ("first", "second"):
                nsqadmin.post("/api/topics", f'{{"topic":"{topic}"}}'.encode())
            nsqadmin.send_signal(signal.SIGTERM)
            wait_until(lambda: "SIGTERM, stopping" in nsqadmin.log, "it to stop")
            begin.set()
            assert 0 == nsqadmin.wait()

        assert ["first", "second"] == [each["topic"] for each in kept]

    def test_unsent_notifications_are_logged_at_the_stop(self, nsqd: NsqdProcess) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
            with run_nsqadmin(*notification_flags(nsqd, url)) as nsqadmin:
                for topic in ("first", "second"):
                    nsqadmin.post("/api/topics", f'{{"topic":"{topic}"}}'.encode())
                nsqadmin.terminate()
                dropped = 'endpoint did not respond in time: {"action":"create_topic",'

                assert 2 == nsqadmin.log.count(dropped), nsqadmin.log


def test_responses_have_a_strict_content_security_policy(nsqadmin: NsqadminProcess) -> None:
    connection = HTTPConnection(nsqadmin.http_address, timeout=60)
    connection.request("GET", "/ping")
    response = connection.getresponse()
    policy = response.getheader("Content-Security-Policy") or ""
    connection.close()

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        (
            ["--nsqd-http-address=a:1", "--lookupd-http-address=b:1"],
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (["--nsqd-http-address=a"], "--nsqd-http-address: 'a' is not host:port"),
        (
            ["--nsqd-http-address=a:1", "--http-client-tls-cert=c"],
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            ["--nsqd-http-address=a:1", "--allow-config-from-cidr=x"],
            "failed to parse --allow-config-from-cidr (x)",
        ),
        (["--nsqd-http-address=a:1", "--proxy-graphite"], "--proxy-graphite needs"),
        (["--nsqd-http-address=a:1", "--dev-static-dir=/nowhere"], "--dev-static-dir"),
        (
            ["--nsqd-http-address=a:1", "--http-address=4171"],
            "listen (4171) failed - missing port in address",
        ),
    ],
)
def test_invalid_options_are_refused(flags: list[str], why: str) -> None:
    with pytest.raises(NsqadminStartError) as refused, run_nsqadmin(*flags):
        pass

    assert 1 == refused.value.exit_code
    assert why in refused.value.log
    assert "Traceback" not in refused.value.log


def test_a_slow_client_does_not_delay_the_stop(nsqd: NsqdProcess) -> None:
    with run_nsqadmin(f"--nsqd-http-address={nsqd.http_address}") as nsqadmin:
        host, port = nsqadmin.http_address.split(":")
        with socket.create_connection((host, int(port))) as visitor:
            visitor.sendall(b"GET /ping HTTP/1.1\r\nHost:")
            nsqadmin.terminate()


def test_a_stop_aborts_requests_that_wait_for_an_unresponsive_nsqd() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as hanging,
        run_nsqadmin(
            f"--nsqd-http-address=127.0.0.1:{hanging.getsockname()[1]}", "--sample-interval=0"
        ) as nsqadmin,
        ThreadPoolExecutor(1) as visitor,
    ):
        answer = visitor.submit(nsqadmin.http, "GET", "/api/topics")
        asked, _ = hanging.accept()
        with asked:
            nsqadmin.terminate()
        with pytest.raises((RemoteDisconnected, ConnectionResetError)):
            answer.result()

        assert "WARNING: HTTP: 1 request aborted, not finished in time" in nsqadmin.log


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/actions/pause", 400),
        ("POST", "/api/topics", 413),
        ("PUT", "/config/log_level", 413),
    ],
)
def test_a_body_that_is_too_large_is_refused(
    nsqadmin: NsqadminProcess, method: str, path: str, status: int
) -> None:
    answer = nsqadmin.http(method, path, b"a=" + b"x" * 3_000_000, FORM)

    assert status == answer.status


def test_invalid_http_is_refused_and_logged_in_one_line(nsqadmin: NsqadminProcess) -> None:
    host, port = nsqadmin.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as visitor:
        visitor.sendall(b"what?\r\n\r\n")
        assert visitor.recv(100).startswith(b"HTTP/1.1 400 ")

    wait_until(lambda: "WARNING: HTTP: Invalid HTTP request" in nsqadmin.log, "the line")
