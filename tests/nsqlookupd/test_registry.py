"""The registry alone: its rules, its timeouts, and its indexes."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from penstock.common.clock import SECOND_NS
from penstock.common.errors import LimitReachedError
from penstock.nsqlookupd.registry import (
    UNKNOWN_INDEX,
    RegisteredProducer,
    Registration,
    Registry,
)
from penstock.protocol.lookup_v1 import NsqdInfo
from penstock.testing.clock import ManualClock

INACTIVE_NS = 300 * SECOND_NS
TOMBSTONE_NS = 45 * SECOND_NS
LIFETIMES = {"inactive_producer_timeout_ns": INACTIVE_NS, "tombstone_lifetime_ns": TOMBSTONE_NS}


class RecordingListener:
    """Records the callbacks of the registry."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.advance_ns = 0

    def changed(self, topic: str) -> None:
        self.changes.append(topic)

    def advance_at(self, now_ns: int) -> None:
        self.advance_ns = now_ns


class Setup:
    """A registry with its clock and its listener."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.listener = RecordingListener()
        self.registry = Registry(self.clock, self.listener, **LIFETIMES)

    def producer(self, name: str, node_id: int | None = None) -> RegisteredProducer:
        info = NsqdInfo(
            broadcast_address=name,
            tcp_port=4150,
            http_port=4151,
            version="1.3.0",
            node_id=node_id,
        )
        return self.registry.add_producer(f"{name}:50000", info)[0]

    def found(self, topic: str) -> list[str] | None:
        found = self.registry.lookup(topic)
        return None if found is None else [node.info.broadcast_address for node in found.producers]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def shown(registrations: list[Registration]) -> list[str]:
    return [str(registration) for registration in registrations]


def test_node_ids_of_other_producers(setup: Setup) -> None:
    a = setup.producer("a", 5)
    setup.producer("a", 6)  # Another connection of the same nsqd.
    b, c = setup.producer("b", 5), setup.producer("c", 7)
    setup.producer("d")

    assert {5: b, 7: c} == setup.registry.used_node_ids(a)
    setup.registry.remove_producer(b)
    assert {7: c} == setup.registry.used_node_ids(a)


def test_a_channel_is_registered_together_with_its_topic(setup: Setup) -> None:
    made = setup.registry.register(setup.producer("a"), "t", "c")

    assert ["category:channel key:t subkey:c", "category:topic key:t subkey:"] == shown(made)
    assert (["t"], ["c"]) == (setup.registry.topics(), setup.registry.channels("t"))
    assert ["a"] == setup.found("t")


def test_registering_again_changes_nothing(setup: Setup) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, "t", "c")
    index = setup.registry.index("t")

    assert [] == setup.registry.register(producer, "t", "c")
    assert index == setup.registry.index("t")


def test_unknown_names_are_not_found(setup: Setup) -> None:
    assert None is setup.registry.lookup("t")
    assert [] == setup.registry.channels("t")
    assert not setup.registry.delete_channel("t", "c")
    assert [] == setup.registry.delete_topic("t")
    assert [] == setup.registry.unregister(setup.producer("a"), "t", "c")
    setup.registry.tombstone("t", "a:4151")
    assert [] == setup.registry.topics()


# The remaining registrations of topic `t` and channel `c` after an action of their only producer.
Left = tuple[list[str], list[str]]


def taking_back(topic: str, channel: str = "") -> Callable[[Setup, RegisteredProducer], object]:
    return lambda setup, producer: setup.registry.unregister(producer, topic, channel)


def leaving(setup: Setup, producer: RegisteredProducer) -> object:
    return setup.registry.remove_producer(producer)


@pytest.mark.parametrize(
    ("topic", "channel", "action", "left"),
    [
        ("t", "c", taking_back("t", "c"), (["t"], ["c"])),
        ("t", "c", taking_back("t"), (["t"], ["c"])),
        ("t", "c", leaving, (["t"], ["c"])),
        ("t", "c#ephemeral", taking_back("t", "c#ephemeral"), (["t"], [])),
        ("t", "c#ephemeral", taking_back("t"), (["t"], ["c#ephemeral"])),
        ("t", "c#ephemeral", leaving, (["t"], ["c#ephemeral"])),
        ("t#ephemeral", "c", taking_back("t#ephemeral", "c"), (["t#ephemeral"], ["c"])),
        ("t#ephemeral", "c", taking_back("t#ephemeral"), ([], ["c"])),
        ("t#ephemeral", "c", leaving, (["t#ephemeral"], ["c"])),
    ],
)
def test_which_keys_outlive_their_producers(
    setup: Setup,
    topic: str,
    channel: str,
    action: Callable[[Setup, RegisteredProducer], object],
    left: Left,
) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, topic, channel)

    action(setup, producer)

    assert left == (setup.registry.topics(), setup.registry.channels(topic))


def test_an_ephemeral_key_remains_while_another_producer_has_it(setup: Setup) -> None:
    first, second = setup.producer("a"), setup.producer("b")
    for producer in (first, second):
        setup.registry.register(producer, "t#ephemeral", "c#ephemeral")

    setup.registry.unregister(first, "t#ephemeral", "c#ephemeral")
    setup.registry.unregister(first, "t#ephemeral")

    assert ["b"] == setup.found("t#ephemeral")
    assert ["c#ephemeral"] == setup.registry.channels("t#ephemeral")


def test_unregistering_a_topic_unregisters_its_channels(setup: Setup) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, "t", "c")
    setup.registry.register(producer, "other", "c")

    lost = setup.registry.unregister(producer, "t")

    assert ["category:channel key:t subkey:c", "category:topic key:t subkey:"] == shown(lost)
    assert ([], ["a"]) == (setup.found("t"), setup.found("other"))


def test_a_removed_producer_is_in_no_registration(setup: Setup) -> None:
    producer, other = setup.producer("a"), setup.producer("b")
    for topic in ("t", "u"):
        setup.registry.register(producer, topic, "c")
        setup.registry.register(other, topic, "c")

    lost = setup.registry.remove_producer(producer)

    assert 5 == len(lost)
    assert "category:client key: subkey:" == str(lost[-1])
    assert all(producer not in each.producers for each in setup.registry.registrations())
    assert ["b"] == setup.found("t")
    assert [other] == setup.registry.active_producers()


def test_deleting_a_topic_deletes_its_channels_until_a_producer_registers_again(
    setup: Setup,
) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, "t", "c")

    deleted = setup.registry.delete_topic("t")
    gone = setup.found("t"), setup.registry.channels("t")
    made = setup.registry.register(producer, "t")

    assert 2 == len(deleted)
    assert (None, []) == gone
    assert 1 == len(made)
    assert ["a"] == setup.found("t")
    assert 2 == len(setup.registry.remove_producer(producer))


def test_an_operator_creates_keys_without_producers(setup: Setup) -> None:
    setup.registry.create("t", "c")

    assert [] == setup.found("t")
    assert ["c"] == setup.registry.channels("t")
    assert setup.registry.delete_channel("t", "c")
    assert (["t"], []) == (setup.registry.topics(), setup.registry.channels("t"))


def test_topics_and_channels_are_limited(setup: Setup) -> None:
    limits = {"max_topics": 1, "max_channels_per_topic": 1}
    registry = Registry(setup.clock, setup.listener, **LIFETIMES, **limits)
    registry.create("t", "c")

    for topic, channel in (("u", ""), ("u", "c"), ("t", "d")):
        with pytest.raises(LimitReachedError, match=r"too many .*, the limit is 1"):
            registry.create(topic, channel)
        with pytest.raises(LimitReachedError, match=r"too many .*, the limit is 1"):
            registry.register(setup.producer("a"), topic, channel)

    registry.create("t", "c")
    assert (["t"], ["c"], []) == (registry.topics(), registry.channels("t"), registry.channels("u"))


# Time.


def test_a_producer_without_pings_becomes_inactive(setup: Setup) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, "t")

    setup.clock.advance(INACTIVE_NS)
    at_the_limit = setup.found("t")
    setup.clock.advance(1)
    after_it = setup.found("t"), setup.registry.active_producers()
    silence_ns = setup.registry.ping(producer, is_draining=False)

    assert INACTIVE_NS + 1 == silence_ns
    assert (["a"], ([], [])) == (at_the_limit, after_it)
    assert (["a"], [producer]) == (setup.found("t"), setup.registry.active_producers())


def test_a_ping_keeps_a_producer_active(setup: Setup) -> None:
    producer, silent = setup.producer("a"), setup.producer("b")
    for each in (producer, silent):
        setup.registry.register(each, "t")

    for _ in range(3):
        setup.clock.advance(INACTIVE_NS // 2)
        setup.registry.ping(producer, is_draining=False)

    assert ["a"] == setup.found("t")


def test_a_tombstone_hides_a_producer_from_one_topic_for_its_lifetime(setup: Setup) -> None:
    producer = setup.producer("a")
    for topic in ("t", "u"):
        setup.registry.register(producer, topic)

    setup.registry.tombstone("t", "a:4151")
    setup.clock.advance(TOMBSTONE_NS - 1)
    during = setup.found("t"), setup.found("u"), setup.registry.tombstones_of(producer)
    setup.clock.advance(1)
    after = setup.found("t"), setup.registry.tombstones_of(producer)

    assert ([], ["a"], [True, False]) == during
    assert (["a"], [False, False]) == after


@pytest.mark.parametrize("node", ["a", "a:4150", "b:4151", ""])
def test_a_tombstone_for_an_unknown_node_hides_no_producer(setup: Setup, node: str) -> None:
    setup.registry.register(setup.producer("a"), "t")
    setup.registry.tombstone("t", node)

    assert ["a"] == setup.found("t")


def test_only_unregistering_the_topic_removes_a_tombstone(setup: Setup) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, "t")
    setup.registry.tombstone("t", "a:4151")

    setup.registry.register(producer, "t", "c")
    after_registering = setup.found("t")
    setup.registry.unregister(producer, "t")
    setup.registry.register(producer, "t")

    assert ([], ["a"]) == (after_registering, setup.found("t"))


# Changes.


def test_an_index_is_not_reused_even_after_a_restart(setup: Setup) -> None:
    setup.registry.create("t")
    first = setup.registry.index("t")
    setup.registry.delete_topic("t")
    setup.registry.create("t")
    restarted = Setup()
    restarted.clock.set_wall(setup.clock.wall_ns() + SECOND_NS)
    later = Registry(restarted.clock, RecordingListener(), **LIFETIMES)
    later.create("t")

    assert UNKNOWN_INDEX < first < setup.registry.index("t") < later.index("t")


def test_the_listener_is_asked_to_advance_at_the_next_timeout(setup: Setup) -> None:
    producer = setup.producer("a")
    setup.registry.register(producer, "t")
    setup.registry.tombstone("t", "a:4151")

    asked_ns = []
    for _ in range(2):
        asked_ns.append(setup.listener.advance_ns)
        setup.clock.advance(setup.listener.advance_ns - setup.clock.now_ns())
        setup.listener.changes.clear()
        setup.registry.advance()
        assert ["t"] == setup.listener.changes

    assert [TOMBSTONE_NS, INACTIVE_NS + 1] == asked_ns


TOPICS = st.sampled_from(["t", "u", "t#ephemeral"])
CHANNELS = st.sampled_from(["", "c", "d", "c#ephemeral"])


class RegistryMachine(RuleBasedStateMachine):
    """After any actions: a changed lookup has a changed index, and no reference is dangling."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.setup = Setup()
        self.seen: dict[str, tuple[int, object]] = {}

    @initialize(target=nodes)
    def begin(self) -> RegisteredProducer:
        return self.setup.producer("a")

    @rule(target=nodes, name=st.sampled_from(["a", "b"]))
    def connect(self, name: str) -> RegisteredProducer:
        return self.setup.producer(name)

    @rule(node=nodes, topic=TOPICS, channel=CHANNELS)
    def register(self, node: RegisteredProducer, topic: str, channel: str) -> None:
        self.setup.registry.register(node, topic, channel)

    @rule(node=nodes, topic=TOPICS, channel=CHANNELS)
    def unregister(self, node: RegisteredProducer, topic: str, channel: str) -> None:
        self.setup.registry.unregister(node, topic, channel)

    @rule(node=nodes, draining=st.booleans())
    def ping(self, node: RegisteredProducer, draining: bool) -> None:
        self.setup.registry.ping(node, is_draining=draining)

    @rule(node=consumes(nodes))
    def disconnect(self, node: RegisteredProducer) -> None:
        self.setup.registry.remove_producer(node)

    @rule(topic=TOPICS, channel=CHANNELS)
    def create(self, topic: str, channel: str) -> None:
        self.setup.registry.create(topic, channel)

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        self.setup.registry.delete_topic(topic)

    @rule(topic=TOPICS, channel=CHANNELS)
    def delete_channel(self, topic: str, channel: str) -> None:
        self.setup.registry.delete_channel(topic, channel)

    @rule(topic=TOPICS, name=st.sampled_from(["a", "b"]))
    def tombstone(self, topic: str, name: str) -> None:
        self.setup.registry.tombstone(topic, f"{name}:4151")

    @rule(duration_ns=st.sampled_from([SECOND_NS, TOMBSTONE_NS, INACTIVE_NS // 2, INACTIVE_NS + 1]))
    def wait(self, duration_ns: int) -> None:
        self.setup.clock.advance(duration_ns)

    @invariant()
    def equal_indexes_have_equal_lookups(self) -> None:
        for topic in ("t", "u", "t#ephemeral"):
            found = self.setup.registry.lookup(topic)
            answer = found and (found.channels, [(id(n), n.is_draining) for n in found.producers])
            index = self.setup.registry.index(topic)
            before_index, before = self.seen.get(topic, (UNKNOWN_INDEX, None))
            assert answer == before or index != before_index
            assert (index == UNKNOWN_INDEX) == (found is None)
            self.seen[topic] = index, answer

    @invariant()
    def producers_and_registrations_refer_to_each_other(self) -> None:
        registry = self.setup.registry
        known = set(registry.registrations())
        for producer in registry.producers:
            for registration in (*producer.topics, *producer.channels):
                assert registration in known
                assert producer in registration.producers
        for registration in known:
            assert set(registration.producers) <= set(registry.producers)


TestRegistryMachine = RegistryMachine.TestCase
