"""A producer that finds the leader of a replicated node after every failure, and records which
messages were acknowledged."""

import threading
import time
from itertools import count
from types import TracebackType
from typing import NamedTuple, Self

from penstock.protocol import commands
from penstock.testing.raw_client import DisconnectedError, RawClient, WireError
from penstock.testing.replicated import ReplicatedNode
from penstock.testing.waiting import wait_until

__all__ = ["CHANNEL", "TOPIC", "Acknowledgement", "LedgerProducer", "read_channel"]

TOPIC, CHANNEL = "t", "audit"
BATCH = 10
PAUSE_SECONDS = 0.002

_CONNECTION_LOST = (DisconnectedError, ConnectionError, TimeoutError, OSError)


class Acknowledgement(NamedTuple):
    """When and by which member a batch was acknowledged."""

    at: float
    member: str


class LedgerProducer:
    """Publishes batches of numbers in a thread for the duration of its block."""

    def __init__(self, node: ReplicatedNode, *, prefix: str = "") -> None:
        self.acknowledged: set[bytes] = set()
        self.acknowledgements: list[Acknowledgement] = []
        self.refusals: list[str] = []
        self.published = 0
        self._node = node
        self._prefix = prefix
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

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

    def await_progress(self) -> None:
        """Wait until further messages have been acknowledged."""
        enough = len(self.acknowledged) + 5 * BATCH
        try:
            wait_until(lambda: len(self.acknowledged) >= enough, "publishes")
        except AssertionError as timeout:
            raise AssertionError(f"{timeout}\n{self.refusals[-5:]}\n{self._node.logs()}") from None

    def await_refusal(self, text: str = "") -> None:
        """Wait until a publish has been refused with an error that contains `text`."""
        before = len(self.refusals)
        wait_until(
            lambda: any(text in refusal for refusal in self.refusals[before:]),
            f"a refusal with {text!r}",
        )

    def _run(self) -> None:
        numbers = count()
        leader = ""
        while not self._stopping.is_set():
            # A leader that is cut off from the others still says that it leads.
            leader = self._node.leader(rather_not=leader) or ""
            if not leader:
                self._stopping.wait(0.05)
                continue
            try:
                with RawClient(self._node.members[leader].tcp_address, timeout_seconds=5) as client:
                    self._publish(client, leader, numbers)
            except WireError as refusal:
                self.refusals.append(str(refusal))
                self._stopping.wait(0.05)
            except _CONNECTION_LOST:
                self._stopping.wait(0.05)

    def _publish(self, client: RawClient, leader: str, numbers: "count[int]") -> None:
        while not self._stopping.is_set():
            bodies = [f"{self._prefix}{next(numbers)}".encode() for _ in range(BATCH)]
            self.published += BATCH
            client.call(commands.mpub(TOPIC, bodies))
            self.acknowledgements.append(Acknowledgement(time.monotonic(), leader))
            self.acknowledged.update(bodies)
            self._stopping.wait(PAUSE_SECONDS)


def read_channel(
    node: ReplicatedNode, wanted: set[bytes], *, channel: str = CHANNEL
) -> list[bytes]:
    """Bodies that the leader's channel delivers, until all `wanted` were received or none came for
    20 s."""
    bodies: list[bytes] = []
    missing = set(wanted)
    while missing:
        try:
            with RawClient(node.led_by.tcp_address) as client:
                client.subscribe(TOPIC, channel, rdy=2000)
                while missing:
                    message = client.message(seconds=20)
                    bodies.append(message.body)
                    missing.discard(message.body)
                    client.send(commands.fin(message.id))
        except TimeoutError:
            break
        except _CONNECTION_LOST:
            continue  # Another member has taken over.
    return bodies
