"""A server whose endpoints respond when a test tells them to."""

from collections.abc import Iterator

import pytest
from tests.net.http_server.endpoints import ControlledEndpoints
from tests.net.http_server.live_server import LiveServer, live_server


@pytest.fixture
def endpoints() -> ControlledEndpoints:
    return ControlledEndpoints()


@pytest.fixture
def server(endpoints: ControlledEndpoints) -> Iterator[LiveServer]:
    with live_server(endpoints.routes) as live:
        yield live
