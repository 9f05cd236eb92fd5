"""A producer that runs through failures of nsqd and records which messages were acknowledged."""

import threading
from itertools import count
from types import TracebackType
from typing import Self

from penstock.protocol import commands
from penstock.testing.nsqd import NsqdProcess
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.waiting import wait_until

__all__ = ["SteadyLoad", "received"]

TOPIC, CHANNEL = "t", "c"
BATCH = 10
PAUSE_SECONDS = 0.002


class SteadyLoad:
    """Publishes batches of numbers in a thread for the duration of its block."""

    def __init__(self, nsqd: NsqdProcess) -> None:
        self.acknowledged: set[bytes] = set()
        self.refusals: list[str] = []
        self._address = nsqd.tcp_address
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        nsqd.post(f"/topic/create?topic={TOPIC}")
        nsqd.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def await_progress(self, *, seconds: float = 60.0) -> None:
        """Wait until further messages have been acknowledged."""
        enough = len(self.acknowledged) + 5 * BATCH
        wait_until(lambda: len(self.acknowledged) >= enough, "publishes", seconds=seconds)

    def await_refusal(self) -> None:
        """Wait until a publish has been refused."""
        before = len(self.refusals)
        wait_until(lambda: len(self.refusals) > before, "a refusal")

    def _run(self) -> None:
        numbers = count()
        while not self._stopping.is_set():
            with RawClient(self._address, timeout_seconds=60) as client:
                try:
                    while not self._stopping.is_set():
                        bodies = [b"%d" % next(numbers) for _ in range(BATCH)]
                        client.call(commands.mpub(TOPIC, bodies))
                        self.acknowledged.update(bodies)
                        self._stopping.wait(PAUSE_SECONDS)
                except WireError as refusal:
                    self.refusals.append(str(refusal))
                    self._stopping.wait(0.02)
                except (DisconnectedError, ConnectionError):
                    return  # nsqd was killed


def received(nsqd: NsqdProcess, wanted: set[bytes]) -> set[bytes]:
    """Bodies that the channel delivers, until all `wanted` were received or none came for 30 s."""
    client = nsqd.consumer(TOPIC, CHANNEL, rdy=2000)
    bodies: set[bytes] = set()
    while not wanted <= bodies:
        try:
            message = client.message(seconds=30)
        except TimeoutError:
            break
        bodies.add(message.body)
        client.send(commands.fin(message.id))
    client.close()
    return bodies
