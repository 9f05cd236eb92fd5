"""nsqd's history of a topic: its extent, its frames, and the offsets of channels.

If nsqd does not have the requested messages, a request raises NotStoredError; for any other failure
it raises HttpRequestError.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.admin_api.blocking_api import ApiReply, BlockingApi
from penstock.admin_api.models import TopicLogResponse
from penstock.common.errors import HttpRequestError, NotConnectedError
from penstock.common.go_json import decode_json
from penstock.net.http_client.blocking import HttpStream
from penstock.net.http_client.messages import without_secrets
from pyspark_nsq.errors import NotStoredError

__all__ = ["History"]

FRAMES_TYPE = "application/vnd.penstock.frames"


class History:
    """The history of a topic at one nsqd, whose base URL is `base`."""

    def __init__(self, api: BlockingApi, base: str, topic: str) -> None:
        self.base = base
        self.topic = topic
        self._api = api

    def log(self) -> TopicLogResponse | None:
        """The topic's log; None if nsqd does not have the topic, or if it is ephemeral."""
        answer = self._api.get(self.base, "/topic/log", topic=self.topic)
        if answer.error_code in ("TOPIC_NOT_FOUND", "TOPIC_IS_EPHEMERAL"):
            return None
        if answer.status == 404:
            reason = "this nsqd keeps no history; mode=channel consumes from it"
            raise HttpRequestError(without_secrets(answer.url), reason, status=404)
        if answer.status != 200:
            raise answer.error()
        return answer.decode(TopicLogResponse)

    def seq_at_time(self, time_ns: int) -> int:
        """Sequence number of the first message at or after this time; if there is none, that of the
        next message."""
        with self._messages(**{"from": time_ns, "limit": 1}) as stream:
            while stream.read():
                pass  # A response that was read completely keeps the connection open for reuse.
            return int(stream.headers["x-penstock-first-seq"])

    @contextmanager
    def frames(self, log_id: str, start: int, end: int) -> Iterator[HttpStream]:
        """The frames of the messages `start` to `end` - 1. Raises NotStoredError, and
        NotConnectedError if this nsqd has another log of the topic."""
        with self._messages(**{"from": f"{log_id}:{start}", "to": f"{log_id}:{end}"}) as stream:
            yield stream

    def create_channel(self, channel: str, seq: int) -> None:
        """Creates a channel in commit mode at `seq`; does not change an existing channel."""
        args = {"topic": self.topic, "channel": channel, "from": seq, "mode": "commit"}
        answer = self._api.post(self.base, "/channel/create", **args)
        if answer.status != 200 and answer.error_code != "CHANNEL_EXISTS":
            raise _error(answer)

    def commit(self, channel: str, seq: int) -> None:
        """Marks all messages below `seq` as finished."""
        args = {"topic": self.topic, "channel": channel, "seq": seq}
        answer = self._api.post(self.base, "/channel/commit", **args)
        if answer.status != 200:
            raise _error(answer)

    @contextmanager
    def _messages(self, **args: object) -> Iterator[HttpStream]:
        with self._api.stream(
            self.base, "/topic/messages", FRAMES_TYPE, topic=self.topic, **args
        ) as answer:
            if isinstance(answer, ApiReply):
                raise _error(answer)
            yield answer


def _error(answer: ApiReply) -> NotStoredError | NotConnectedError | HttpRequestError:
    url = without_secrets(answer.url)
    match answer.error_code:
        case "SEQ_GONE":
            first_seq = _int_field(answer, "first_seq")
            return NotStoredError(f"{url}: the log begins at {first_seq}", first_seq=first_seq)
        case "SEQ_TOO_HIGH":
            next_seq = _int_field(answer, "next_seq")
            return NotStoredError(f"{url}: the log ends at {next_seq}", next_seq=next_seq)
        case "LOG_GONE":
            return NotConnectedError(f"{url}: this nsqd has another log of the topic")
        case "TOPIC_NOT_FOUND":
            return NotStoredError(f"{url}: the topic does not exist there")
        case _:
            return answer.error()


def _int_field(answer: ApiReply, name: str) -> int:
    try:
        return int(decode_json(answer.reply.body, dict[str, int | str])[name])
    except (ValueError, KeyError):
        raise answer.error() from None
