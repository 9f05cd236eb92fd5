"""Redirects after the login."""

import pytest

from penstock.nsqadmin.login import safe_next_path


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/nsq/topics/t?x=1", "/nsq/topics/t?x=1"),
        ("//evil.example/nsq/", "/nsq/"),
        ("https://evil.example/nsq/", "/nsq/"),
        ("/nsq/\\evil.example", "/nsq/"),
        ("/elsewhere", "/nsq/"),
        ("", "/nsq/"),
    ],
)
def test_the_login_redirects_only_to_pages_of_nsqadmin(target: str, path: str) -> None:
    assert path == safe_next_path(target, "/nsq/")
