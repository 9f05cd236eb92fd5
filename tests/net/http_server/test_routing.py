"""The table of exchanges has the rules; here is what no table holds."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.net.http_server import Request, Route, Router
from penstock.net.http_server.head import RequestLine


def endpoint(_: Request) -> str:
    return "OK"


ROUTER = Router(
    [
        Route("GET", "/ping", endpoint),
        Route("GET", "/topics/:topic/:channel", endpoint),
        Route("GET", "/with/slash/", endpoint),
    ]
)


def find(target: str) -> tuple[bool, dict[str, str]]:
    found, params = ROUTER.find(RequestLine(f"GET {target} HTTP/1.1\r\n".encode()))
    return found.is_route, params


def redirect_of(target: str) -> str:
    found, _ = ROUTER.find(RequestLine(f"GET {target} HTTP/1.1\r\n".encode()))
    wire = found.too_big.wire(b"").decode()
    return wire.partition("Location: ")[2].partition("\r\n")[0]


def test_several_parameters_are_found() -> None:
    assert (True, {"topic": "a", "channel": "b#ephemeral"}) == find("/topics/a/b%23ephemeral")


def test_a_parameter_may_not_be_left_out() -> None:
    assert (False, {}) == find("/topics//b")
    assert (False, {}) == find("/topics/a")


def test_a_slash_may_be_missing_too() -> None:
    assert "/with/slash/" == redirect_of("/with/slash")
    assert "/with/slash/" == redirect_of("/WITH//slash")


SEGMENTS = st.lists(st.sampled_from(["", ".", "..", "ping", "PING", "topics", "a", "%2f", "x:y"]))


@given(SEGMENTS)
def test_a_redirect_leads_to_a_route_of_this_server(segments: list[str]) -> None:
    """Also where a path begins with two slashes, which in a Location would name another server."""
    location = redirect_of("/" + "/".join(segments))

    assert not location or (find(location)[0] and not location.startswith("//"))
