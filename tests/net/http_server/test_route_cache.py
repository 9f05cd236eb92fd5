"""Plans are remembered, within bounds, and are the same as new ones."""

from penstock.net.http_server import Request, Route, Router
from penstock.net.http_server.origins import OriginPolicy
from penstock.net.http_server.route_cache import REMEMBERED_BYTES_MAX, REMEMBERED_MAX, Planner


def endpoint(_: Request) -> str:
    return "OK"


def planner(*, gated: bool = False) -> Planner:
    router = Router([Route("POST", "/pub", endpoint, body_bytes_max=100)])
    return Planner(router, head_bytes_max=1 << 20, gated=gated, origins=OriginPolicy())


def raw_head(*headers: str) -> bytes:
    return "\r\n".join(["POST /pub?topic=a HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def test_a_head_that_comes_again_is_remembered() -> None:
    plans = planner()
    raw = raw_head("Content-Length: 5")
    first, second = plans.plan(raw), plans.plan(raw)

    assert {raw: second} == plans.plans
    assert first is not second
    assert (endpoint, 5) == (second.handler, second.body_size)


def test_a_head_that_comes_once_is_not() -> None:
    plans = planner()
    for number in range(100):
        plans.plan(raw_head(f"Trace: {number}"))

    assert {} == plans.plans


def test_its_line_is_read_once_all_the_same() -> None:
    plans = planner()
    heads = [plans.plan(raw_head(f"Trace: {number}")).head for number in range(100)]

    assert 1 == len({id(head.line) for head in heads})


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    plans = planner()
    for number in range(REMEMBERED_MAX + 10):
        for _ in range(2):
            plans.plan(raw_head(f"Trace: {number}"))

    assert 0 < len(plans.plans) <= REMEMBERED_MAX


def test_a_long_head_is_not_remembered() -> None:
    plans = planner()
    for _ in range(3):
        plans.plan(raw_head("X: " + "x" * REMEMBERED_BYTES_MAX))

    assert {} == plans.plans


def test_only_what_needs_nothing_in_between_is_whole() -> None:
    assert planner().plan(raw_head()).is_whole
    assert planner().plan(raw_head("Content-Length: 100")).is_whole
    assert not planner().plan(raw_head("Content-Length: 101")).is_whole
    assert not planner().plan(raw_head("Transfer-Encoding: chunked")).is_whole
    assert not planner().plan(raw_head("Content-Length: 1", "Expect: 100-continue")).is_whole
    assert not planner(gated=True).plan(raw_head()).is_whole
