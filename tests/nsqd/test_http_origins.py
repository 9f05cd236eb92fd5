"""Web pages of other sites cannot change anything in nsqd through a visitor's browser."""

from collections.abc import Iterator

import pytest

from penstock.testing.nsqd import NsqdProcess, NsqdStartError, run_nsqd

CROSS_SITE = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
REFUSED = (403, b'{"message":"CROSS_SITE_REQUEST"}')


@pytest.fixture(scope="module")
def nsqd() -> Iterator[NsqdProcess]:
    with run_nsqd("--http-allowed-origin=https://app.example.com") as process:
        process.post("/topic/create?topic=known")
        process.post("/channel/create?topic=known&channel=c")
        yield process


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/pub?topic=new"),
        ("POST", "/mpub?topic=new"),
        ("POST", "/topic/create?topic=new"),
        ("POST", "/topic/delete?topic=known"),
        ("POST", "/channel/delete?topic=known&channel=c"),
        ("POST", "/channel/pause?topic=known&channel=c"),
        ("POST", "/drain"),
        ("PUT", "/config/log_level"),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [CROSS_SITE, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://127.0.0.1:1"}],
    ids=["cross-site", "same-site", "another origin"],
)
def test_changes_by_another_site_are_refused(
    nsqd: NsqdProcess, method: str, target: str, headers: dict[str, str]
) -> None:
    before = nsqd.http("GET", "/config/log_level")
    answers = [nsqd.http(method, target, b"debug", headers) for _ in range(3)]

    assert [REFUSED] * 3 == answers
    assert not nsqd.http("GET", "/stats?format=json&topic=new").json()["topics"]
    assert [False] == [channel["paused"] for channel in nsqd.stats("known")["channels"]]
    assert before == nsqd.http("GET", "/config/log_level")


def test_changes_with_a_rebound_host_name_are_refused(nsqd: NsqdProcess) -> None:
    host = f"evil.example:{nsqd.http_address.rpartition(':')[2]}"
    headers = {"Host": host, "Origin": f"http://{host}"}

    assert REFUSED == nsqd.http("POST", "/topic/delete?topic=known", headers=headers)


def test_another_site_can_read(nsqd: NsqdProcess) -> None:
    assert (200, b"OK") == nsqd.http("GET", "/ping", headers=CROSS_SITE)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "nsqd.example.com:4151"},
        {"Origin": "https://app.example.com", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://front.example", "X-Forwarded-Host": "front.example"},
    ],
    ids=["program", "program, by name", "allowed origin", "behind a proxy"],
)
def test_programs_and_allowed_pages_can_publish(nsqd: NsqdProcess, headers: dict[str, str]) -> None:
    assert (200, b"OK") == nsqd.http("POST", "/pub?topic=t", b"x", headers)


@pytest.mark.parametrize(
    "origin", ["app.example.com", "https://app.example.com/", "https://", "HTTPS://a", ""]
)
def test_an_allowed_origin_must_be_valid(origin: str) -> None:
    with pytest.raises(NsqdStartError) as raised, run_nsqd(f"--http-allowed-origin={origin}"):
        pass

    assert "--http-allowed-origin must be http(s)://host[:port] or *" in raised.value.log
