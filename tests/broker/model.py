"""A plain model of one channel: what ought to be true of it, with no thought of how it is done.

A message is known by its body. What was not saved before a crash may be as it was before; the model
then takes it as it finds it, within the bounds of what was saved and what was done.
"""

from dataclasses import dataclass, field

from tests.broker.fakes import Consumer

__all__ = ["Delivery", "ModelChannel", "ModelConsumer"]


@dataclass
class Delivery:
    """A message in flight. The broker keeps its times to within a grain."""

    delivered_ns: int
    deadline_ns: int


@dataclass(eq=False)
class ModelConsumer:
    real: Consumer
    in_flight: dict[str, Delivery] = field(default_factory=dict)


@dataclass(eq=False)
class ModelChannel:
    released: list[str] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    finished_saved: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    last_first_delivery: int = -1
    attempts: dict[str, int] = field(default_factory=dict)
    noted: dict[str, int] = field(default_factory=dict)
    """The attempts that a message had when it last came back."""
    noted_saved: dict[str, int] = field(default_factory=dict)
    due_ns: dict[str, int] = field(default_factory=dict)
    paused: bool = False
    consumers: list[ModelConsumer] = field(default_factory=list)
    departed: list[ModelConsumer] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        return [body for body in self.released if body not in self.finished]

    @property
    def in_flight(self) -> list[str]:
        return [body for each in self.consumers + self.departed for body in each.in_flight]

    def release(self, body: str, due_ns: int) -> None:
        """The topic gives the channel a message."""
        self.released.append(body)
        self.attempts[body] = self.noted[body] = 0
        self.due_ns[body] = due_ns

    def put_back(self, body: str, due_ns: int = 0) -> None:
        """A message is no longer in flight, and not finished."""
        self.noted[body] = self.attempts[body]
        self.due_ns[body] = due_ns

    def empty(self) -> None:
        self.finished |= set(self.released)
        self.finished_saved |= self.finished
        self.departed.clear()
        for consumer in self.consumers:
            consumer.in_flight.clear()

    def begin_at(self, released: list[str], finished: set[str], due_ns: dict[str, int]) -> None:
        """All of `released` is as if it had just been given to the channel, but for `finished`."""
        self.released, self.finished, self.finished_saved = released, finished, set(finished)
        self.attempts, self.noted, self.noted_saved = {}, {}, {}
        for body in released:
            self.attempts[body] = self.noted[body] = 0
        self.due_ns = dict(due_ns)
        self.delivered.clear()
        self.last_first_delivery = -1
        self.departed.clear()
        for consumer in self.consumers:
            consumer.in_flight.clear()

    def commit(self, bodies: set[str]) -> None:
        """These are finished, and nobody has anything in flight."""
        for body in self.in_flight:
            self.attempts[body] = self.noted[body]
        self.departed.clear()
        self.finished |= bodies
        self.save()

    def save(self) -> None:
        self.finished_saved |= self.finished
        self.noted_saved |= self.noted

    def stop(self) -> None:
        """A clean stop is about to come."""
        for body in self.in_flight:
            self.put_back(body)
        self.save()
