"""Fixtures: a certificate authority, an untrusted one, and a server's certificate."""

from pathlib import Path

import pytest
from tests.net.tls.certificates import Authority, Identity


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="session")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="session")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "nobody-knows-it")


@pytest.fixture(scope="session")
def server(authority: Authority) -> Identity:
    return authority.issue("server", common_name="server.example", is_rsa=True)
