"""Requests of other sites' pages are refused; those of programs are not."""

import pytest

from penstock.net.origins import OriginPolicy, is_public_name

Headers = dict[bytes, bytes]

HOST = {b"host": b"10.0.0.7:4151"}
NAMED = {b"host": b"nsqd.example.com:4151"}


def refuses(headers: Headers, *allowed: str, method: str = "POST") -> bool:
    return OriginPolicy(allowed).refuses(method, headers)


@pytest.mark.parametrize(
    "headers",
    [
        HOST,
        NAMED,
        {},
        {**HOST, b"origin": b"http://10.0.0.7:4151"},
        {**HOST, b"sec-fetch-site": b"same-origin", b"origin": b"https://app.example.com:8443"},
        {**HOST, b"sec-fetch-site": b"none"},
        {b"host": b"app.example.com", b"origin": b"http://App.example.com"},
        {b"host": b"nsqd:4151", b"origin": b"http://nsqd:4151"},
        {**HOST, b"origin": b"https://app.example.com", b"x-forwarded-host": b"app.example.com"},
    ],
    ids=str,
)
def test_programs_and_pages_of_the_same_origin_are_not_refused(headers: Headers) -> None:
    assert not refuses(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {**HOST, b"origin": b"https://evil.example"},
        {**HOST, b"origin": b"http://10.0.0.7"},
        {**HOST, b"origin": b"http://10.0.0.7:4151.evil.example"},
        {**HOST, b"origin": b"null"},
        {**HOST, b"origin": b""},
        {b"host": b"", b"origin": b"null"},
        {**HOST, b"origin": b"http://[not an address"},
        {**HOST, b"sec-fetch-site": b"cross-site"},
        {**HOST, b"sec-fetch-site": b"same-site", b"origin": b"http://10.0.0.7:4151"},
        {**HOST, b"sec-fetch-site": b"something new"},
        {**NAMED, b"origin": b"http://nsqd.example.com:4151"},
    ],
    ids=str,
)
def test_pages_of_other_origins_and_rebound_names_are_refused(headers: Headers) -> None:
    assert refuses(headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_requests_that_change_nothing_are_not_refused(method: str) -> None:
    assert not refuses({**HOST, b"sec-fetch-site": b"cross-site"}, method=method)


def test_allowed_origins_are_not_refused() -> None:
    headers = {
        **HOST,
        b"sec-fetch-site": b"cross-site",
        b"origin": b"https://app.example.com",
    }

    assert not refuses(headers, "https://app.example.com")
    assert not refuses(headers, "*")
    assert refuses(headers, "http://app.example.com", "https://example.com")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", False),
        ("[::1]", False),
        ("localhost", False),
        ("nsqadmin", False),
        ("web-1.local", False),
        ("NSQ.Prod.Internal", False),
        ("nsq.svc.cluster.local.", False),
        ("evil.example", True),
        ("127.0.0.1.evil.example", True),
        ("evil.example.", True),
        ("", False),
    ],
)
def test_only_names_that_anyone_can_register_are_public(host: str, expected: bool) -> None:
    assert expected == is_public_name(host)
