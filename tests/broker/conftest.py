import pytest
from tests.broker.fakes import Host


@pytest.fixture
def host() -> Host:
    """A broker with the default settings."""
    return Host()
