"""What fuzzing has found worth keeping is tried again, and for a minute it goes on looking.

FUZZ_SECONDS says how long, all targets together; FUZZ_SECONDS=0 leaves it at the replay, and
`python -m fuzz` is how to look for longer.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from fuzz import engine
from fuzz.minimising import minimised
from fuzz.replay import failure_of, replay
from fuzz.targets import TARGETS, Target, load_target

from penstock.net.http_server.parsing import SizedBody
from penstock.protocol.buffer import ReceiveBuffer
from penstock.protocol.compression import Snappy
from penstock.storage import batch

pytestmark = pytest.mark.usefixtures("damaged_on_purpose")

SECONDS_EACH = int(os.environ.get("FUZZ_SECONDS", "60")) // len(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_kept_shows_nothing_wrong(name: str) -> None:
    replayed = replay(load_target(name))

    assert [] == replayed.failures
    assert replayed.inputs > len(load_target(name).seeds), "nothing is kept for it"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_EACH + 240)
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_new_is_found(name: str) -> None:
    if not engine.is_available():
        # PyPI has atheris for some Pythons and processors only. The test above replays the inputs
        # that it has found before.
        pytest.skip("there is no atheris for this Python")
    if SECONDS_EACH == 0:
        # FUZZ_SECONDS=0 asks for it; the default is one minute for all targets.
        pytest.skip("FUZZ_SECONDS leaves no time for it")
    fuzzed = engine.fuzz(name, SECONDS_EACH)
    print(f"{fuzzed.runs:,} inputs in {SECONDS_EACH} s")

    assert [] == [failure_of(load_target(name), data) or fuzzed.output for data in fuzzed.failed]
    assert fuzzed.runs > 0


def wants_too_much(buffer: Any, size: int) -> None:
    buffer._missing = size + 1 - (len(buffer.data) - buffer.start)


def skips_too_much(layer: Any) -> bytes:
    layer._buffer.start, layer._skip = len(layer._buffer.data), 0
    return b""


def reads_too_little(body: Any, data: bytes, start: int = 0) -> int:
    body._body += data[start : start + body._left]
    body.is_complete = True
    return int(min(start + body._left, len(data)))


def gives_up_at_damage(window: Any, _position: int) -> int:
    return int(window.end)


@pytest.mark.parametrize(
    ("name", "place", "method", "bug"),
    [
        ("wire_server", ReceiveBuffer, "want", wants_too_much),
        ("wire_client", ReceiveBuffer, "want", wants_too_much),
        ("lookupd", ReceiveBuffer, "want", wants_too_much),
        ("layers", Snappy, "_skip_received", skips_too_much),
        ("http_server", SizedBody, "feed", reads_too_little),
        ("log_recovery", batch, "_next_header", gives_up_at_damage),
    ],
)
def test_a_bug_would_be_noticed(
    name: str,
    place: object,
    method: str,
    bug: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, method, bug)

    assert [] != replay(load_target(name)).failures


def test_inputs_that_reach_nothing_of_their_own_are_not_kept() -> None:
    def check(data: bytes) -> None:
        load_target("wire_server").check(b"  V2" + data)

    target = Target("any", (), (), check)

    nops = [b"NOP\n" * count for count in range(5)]

    assert nops[:3] == minimised(target, reversed(nops))
