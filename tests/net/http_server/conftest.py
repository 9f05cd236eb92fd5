"""A server whose endpoints answer when they are told to."""

from collections.abc import Iterator

import pytest
from tests.net.http_server.endpoints import Waiter
from tests.net.http_server.live_server import LiveServer, live_server


@pytest.fixture
def waiter() -> Waiter:
    return Waiter()


@pytest.fixture
def server(waiter: Waiter) -> Iterator[LiveServer]:
    with live_server(waiter.routes) as live:
        yield live
