"""Responses of nsqlookupd, and of servers that are not nsqlookupd."""

import pytest

from penstock.admin_api.lookupd_api import registered_nodes
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.messages import HttpReply

URL = "http://ann:secret@l:4161/lookup?topic=t"


def test_nodes_of_a_topic() -> None:
    body = (
        b'{"channels":["c"],"producers":[{"broadcast_address":"::1","tcp_port":1,"http_port":2}]}'
    )

    (node,) = registered_nodes(URL, HttpReply(200, {}, body))

    assert ("[::1]:1", "[::1]:2") == (node.tcp_address, node.http_address)


def test_an_unknown_topic_has_no_nodes() -> None:
    assert [] == registered_nodes(URL, HttpReply(404, {}, b'{"message":"TOPIC_NOT_FOUND"}'))


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, b'{"message":"NOT_FOUND"}', "got response 404: this is not an nsqlookupd"),
        (404, b"<html>TOPIC_NOT_FOUND</html>", "got response 404: this is not an nsqlookupd"),
        (500, b"oh", "got response 500 'oh'"),
        (200, b"[]", "unexpected response: "),
    ],
)
def test_other_responses_are_errors_without_secrets(status: int, body: bytes, reason: str) -> None:
    with pytest.raises(HttpRequestError) as failure:
        registered_nodes(URL, HttpReply(status, {}, body))

    assert str(failure.value).startswith(f"http://l:4161/lookup: {reason}")
