"""nsqd's history of a topic: its extent, its frames, and the offsets of channels.

If nsqd does not have the requested messages, a request raises NotStoredError; for any other failure
it raises HttpRequestError.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.admin_api.models import TopicLogResponse
from penstock.common.errors import HttpRequestError
from pyspark_nsq.errors import NotStoredError
from pyspark_nsq.http_calls import Answer, HttpCalls, Streamed

__all__ = ["History"]

FRAMES_TYPE = "application/vnd.penstock.frames"


class History:
    """The history of a topic at one nsqd, whose base URL is `base`."""

    def __init__(self, calls: HttpCalls, base: str, topic: str) -> None:
        self.base = base
        self.topic = topic
        self._calls = calls

    def log(self) -> TopicLogResponse | None:
        """What there is; None if the topic is not known there, or has no log."""
        answer = self._calls.get(self.base, "/topic/log", topic=self.topic)
        if answer.status == 404 and _message(answer) == "TOPIC_NOT_FOUND":
            return None
        if answer.status == 400 and _message(answer) == "TOPIC_IS_EPHEMERAL":
            return None
        return _decoded(answer)

    def seq_at_time(self, time_ns: int) -> int:
        """The number of the first message at or after this time; of the next one to come if there
        is none."""
        with self._messages(**{"from": time_ns, "limit": 1}) as streamed:
            return int(streamed.header("X-Penstock-First-Seq"))

    @contextmanager
    def frames(self, node: int, start: int, end: int) -> Iterator[Streamed]:
        """The frames of the messages from `start` to before `end`. Raises NotStoredError, and
        HttpRequestError if it is another node that answers."""
        with self._messages(**{"from": start, "to": end}) as streamed:
            if streamed.header("X-Penstock-Node-Id") != str(node):
                found = streamed.header("X-Penstock-Node-Id")
                raise HttpRequestError(streamed.url, f"node {found} answers, not node {node}")
            yield streamed

    def create_channel(self, channel: str, seq: int) -> None:
        """Makes a channel that is moved by commits, at `seq`; one that is there is left alone."""
        place = {"topic": self.topic, "channel": channel, "from": seq, "mode": "commit"}
        answer = self._calls.post(self.base, "/channel/create", **place)
        if answer.status != 200 and _message(answer) != "CHANNEL_EXISTS":
            raise _refusal(answer)

    def commit(self, channel: str, seq: int) -> None:
        """Everything below `seq` is finished."""
        place = {"topic": self.topic, "channel": channel, "seq": seq}
        answer = self._calls.post(self.base, "/channel/commit", **place)
        if answer.status != 200:
            raise _refusal(answer)

    @contextmanager
    def _messages(self, **args: object) -> Iterator[Streamed]:
        with self._calls.stream(
            self.base, "/topic/messages", FRAMES_TYPE, topic=self.topic, **args
        ) as answer:
            if isinstance(answer, Answer):
                raise _refusal(answer)
            yield answer


def _decoded(answer: Answer) -> TopicLogResponse:
    if answer.status == 404:
        raise HttpRequestError(
            answer.url, "this nsqd keeps no history; mode=channel consumes from it", status=404
        )
    if answer.status != 200:
        raise answer.refusal()
    try:
        return msgspec.json.decode(answer.body, type=TopicLogResponse)
    except msgspec.DecodeError as failure:
        raise HttpRequestError(answer.url, f"unexpected answer: {failure}") from None


def _refusal(answer: Answer) -> NotStoredError | HttpRequestError:
    match _message(answer):
        case "SEQ_GONE":
            first_seq = int(answer.json()["first_seq"])
            return NotStoredError(
                f"{answer.url}: the log begins at {first_seq}", first_seq=first_seq
            )
        case "SEQ_TOO_HIGH":
            next_seq = int(answer.json()["next_seq"])
            return NotStoredError(f"{answer.url}: the log ends at {next_seq}", next_seq=next_seq)
        case "TOPIC_NOT_FOUND":
            return NotStoredError(f"{answer.url}: the topic does not exist there")
        case _:
            return answer.refusal()


def _message(answer: Answer) -> str:
    try:
        said: Any = answer.json()
    except HttpRequestError:
        return ""
    return str(said.get("message", "")) if isinstance(said, dict) else ""
