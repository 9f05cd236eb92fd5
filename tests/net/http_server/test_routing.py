"""The router and its cache; test_connection.py tests whole exchanges."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_server import Request, Route, Router
from penstock.net.http_server.parsing import RequestLine
from penstock.net.http_server.routing import CACHED_HEAD_BYTES_MAX, CACHED_HEADS_MAX, RouteCache
from penstock.net.origins import OriginPolicy


def handle(_: Request) -> str:
    return "OK"


ROUTER = Router(
    [
        Route("GET", "/ping", handle),
        Route("GET", "/topics/:topic/:channel", handle),
        Route("GET", "/with/slash/", handle),
    ]
)


def find(target: str) -> tuple[bool, dict[str, str]]:
    endpoint, params = ROUTER.find(RequestLine(f"GET {target} HTTP/1.1\r\n".encode()))
    return endpoint.is_route, params


def redirect_of(target: str) -> str:
    endpoint, _ = ROUTER.find(RequestLine(f"GET {target} HTTP/1.1\r\n".encode()))
    response = endpoint.too_large.to_bytes(b"").decode()
    return response.partition("Location: ")[2].partition("\r\n")[0]


def test_parameters_of_a_path_are_decoded() -> None:
    assert (True, {"topic": "a", "channel": "b#ephemeral"}) == find("/topics/a/b%23ephemeral")


def test_a_parameter_cannot_be_empty_or_missing() -> None:
    assert (False, {}) == find("/topics//b")
    assert (False, {}) == find("/topics/a")


def test_a_missing_slash_is_added_by_a_redirect() -> None:
    assert "/with/slash/" == redirect_of("/with/slash")
    assert "/with/slash/" == redirect_of("/WITH//slash")


SEGMENTS = st.lists(st.sampled_from(["", ".", "..", "ping", "PING", "topics", "a", "%2f", "x:y"]))


@given(SEGMENTS)
def test_a_redirect_leads_to_a_route_of_this_server(segments: list[str]) -> None:
    """Also if the path begins with two slashes, which in a Location would name another server."""
    location = redirect_of("/" + "/".join(segments))

    assert not location or (find(location)[0] and not location.startswith("//"))


def new_cache(*, has_middleware: bool = False) -> RouteCache:
    router = Router([Route("POST", "/pub", handle, body_bytes_max=100)])
    return RouteCache(
        router, head_bytes_max=1 << 20, has_middleware=has_middleware, origins=OriginPolicy()
    )


def raw_head(*headers: str) -> bytes:
    return "\r\n".join(["POST /pub?topic=a HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def test_a_repeated_head_is_cached() -> None:
    cache = new_cache()
    raw = raw_head("Content-Length: 5")
    first, second = cache.route(raw), cache.route(raw)

    assert {raw: second} == cache.heads
    assert first is not second
    assert (handle, 5) == (second.handler, second.body_size)


def test_a_head_that_is_sent_once_is_not_cached() -> None:
    cache = new_cache()
    for number in range(100):
        cache.route(raw_head(f"Trace: {number}"))

    assert {} == cache.heads


def test_a_repeated_request_line_is_parsed_once() -> None:
    cache = new_cache()
    heads = [cache.route(raw_head(f"Trace: {number}")).head for number in range(100)]

    assert 1 == len({id(head.line) for head in heads})


def test_the_cache_is_bounded() -> None:
    cache = new_cache()
    for number in range(CACHED_HEADS_MAX + 10):
        for _ in range(2):
            cache.route(raw_head(f"Trace: {number}"))

    assert 0 < len(cache.heads) <= CACHED_HEADS_MAX


def test_a_long_head_is_not_cached() -> None:
    cache = new_cache()
    for _ in range(3):
        cache.route(raw_head("X: " + "x" * CACHED_HEAD_BYTES_MAX))

    assert {} == cache.heads


def test_middleware_chunks_expectations_and_large_bodies_exclude_a_plain_body() -> None:
    assert new_cache().route(raw_head()).has_plain_body
    assert new_cache().route(raw_head("Content-Length: 100")).has_plain_body
    assert not new_cache().route(raw_head("Content-Length: 101")).has_plain_body
    assert not new_cache().route(raw_head("Transfer-Encoding: chunked")).has_plain_body
    assert (
        not new_cache().route(raw_head("Content-Length: 1", "Expect: 100-continue")).has_plain_body
    )
    assert not new_cache(has_middleware=True).route(raw_head()).has_plain_body
