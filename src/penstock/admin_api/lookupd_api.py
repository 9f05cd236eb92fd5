"""Responses of nsqlookupd to `/lookup` and `/nodes`."""

from penstock.admin_api.models import LookupResponse, RegisteredNode
from penstock.admin_api.nsqd_api import error_code
from penstock.common.errors import HttpRequestError
from penstock.net.http_client.messages import HttpReply, decode_reply, without_secrets

__all__ = ["registered_nodes"]


def registered_nodes(url: str, reply: HttpReply) -> list[RegisteredNode]:
    """The nsqds in a response; empty if nsqlookupd does not know the topic. Raises
    HttpRequestError if the response is not nsqlookupd's."""
    if reply.status == 404:
        if error_code(reply.body) == "TOPIC_NOT_FOUND":
            return []
        reason = "got response 404: this is not an nsqlookupd"
        raise HttpRequestError(without_secrets(url), reason, status=404)
    return decode_reply(url, reply, LookupResponse).producers or []
