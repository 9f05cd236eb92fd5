"""Channels with a place in their topic's log, over HTTP: putting them there, and moving them.

A channel is moved by its consumers, message by message, or by commits: then somebody who reads the
topic by `/topic/messages` says how far it got. It is one or the other, because a consumer's FIN and
a commit would undo each other's meaning. A channel that is moved by commits says `"mode":"commit"`
in nsqd.dat and in /stats, and refuses consumers.
"""

from penstock.broker.channel import Channel
from penstock.common import names
from penstock.net.http_server import HttpError, Request, Route
from penstock.nsqd.history import HistoryServices
from penstock.nsqd.history_args import (
    answering_refusals,
    lasting_channel,
    log_of,
    position_arg,
    word_arg,
)
from penstock.nsqd.history_position import OffsetAheadError, find_seq
from penstock.nsqd.http_args import required, topic_and_channel_name

__all__ = ["ChannelHistory"]

_CONSUME, _COMMIT = "consume", "commit"


class ChannelHistory:
    """The endpoints of channels."""

    def __init__(self, services: HistoryServices) -> None:
        self._services = services
        self._broker = services.broker

    def routes(self) -> list[Route]:
        """The table of them."""
        log = self._services.log
        return [
            Route("POST", "/channel/create", answering_refusals(log, self._create)),
            Route("POST", "/channel/seek", answering_refusals(log, self._seek)),
            Route("POST", "/channel/commit", answering_refusals(log, self._commit)),
            Route("POST", "/channel/mode", answering_refusals(log, self._set_mode)),
        ]

    def _create(self, request: Request) -> None:
        args = request.args
        topic, name = topic_and_channel_name(self._broker, args)
        position = position_arg(args, "from")
        mode = word_arg(args, "mode", (_CONSUME, _COMMIT))
        if position is None and mode == _CONSUME:
            topic.channel(name)
            return
        log = log_of(topic)
        if names.is_ephemeral(name):
            raise HttpError(400, "CHANNEL_IS_EPHEMERAL")
        if name in topic.channels:
            raise HttpError(409, "CHANNEL_EXISTS")
        channel = topic.channel(name, None if position is None else find_seq(log, position))
        self._change_mode(channel, mode)

    def _seek(self, request: Request) -> None:
        _, log, channel = lasting_channel(self._broker, request.args)
        required(request.args, "to")
        position = position_arg(request.args, "to")
        assert position is not None
        channel.seek(find_seq(log, position))

    def _commit(self, request: Request) -> object:
        _, log, channel = lasting_channel(self._broker, request.args)
        seq = _seq_arg(request.args)
        if seq > log.next_seq:
            raise OffsetAheadError(log.next_seq)
        self._change_mode(channel, _COMMIT)
        floor = channel.commit(seq)
        channel.committed_at_ns = self._services.clock.wall_ns()
        return {"seq": floor}

    def _set_mode(self, request: Request) -> None:
        _, _, channel = lasting_channel(self._broker, request.args)
        required(request.args, "mode")
        self._change_mode(channel, word_arg(request.args, "mode", (_CONSUME, _COMMIT)))

    def _change_mode(self, channel: Channel, mode: str) -> None:
        committing = mode == _COMMIT
        if committing and channel.subscribers:
            raise HttpError(409, "CHANNEL_HAS_CONSUMERS")
        if channel.committing != committing:
            channel.set_committing(committing)
            channel.committed_at_ns = self._services.clock.wall_ns() if committing else 0
            self._services.save_metadata_soon()


def _seq_arg(args: dict[str, str]) -> int:
    required(args, "seq")
    position = position_arg(args, "seq")
    if position is None or position.kind != "seq":
        raise HttpError(400, "INVALID_ARG_SEQ")
    return position.value
