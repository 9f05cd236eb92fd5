"""Matcher of RE2 regular expressions, for names of topics and channels.

Python's `re` differs in syntax and takes exponential time for some expressions. Like RE2, this
matcher simulates all states of the expression in parallel: the time is bounded by the size of the
expression times the length of the name. It reports whether there is a match, not its position.
"""

from dataclasses import dataclass
from functools import lru_cache

from penstock.common.names import NAME_BYTES_MAX
from penstock.common.re2.syntax import (
    Chars,
    Choice,
    Holds,
    Look,
    Node,
    PatternError,
    Repeat,
    Sequence,
    parse,
)

__all__ = ["Pattern", "compile_pattern"]

# Maximum parts of an expression from an auth server, with repetitions expanded. A search takes at
# most the product of this and the length of the name.
PARTS_MAX = 1500


# Cached, since all clients have the same few expressions.
@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> "Pattern":
    """Compile an expression, or return the cached result. Raises PatternError if it is invalid."""
    return Pattern(text)


class Pattern:
    """A compiled expression."""

    __slots__ = ("_parts", "_parts_max", "_start", "_states", "text")

    def __init__(self, text: str, *, parts_max: int = PARTS_MAX) -> None:
        """Raises PatternError if the expression is invalid, or has more than `parts_max` parts."""
        self.text = text
        self._parts = 0
        self._parts_max = parts_max
        self._states: list[_State] = []
        self._start = self._compile(parse(text), self._add(_Match()))

    def search(self, name: str) -> bool:
        """Whether a part of `name` matches. `name` must be valid or empty."""
        assert len(name) <= NAME_BYTES_MAX
        assert name.isascii()
        waiting: set[int] = set()
        for position in range(len(name) + 1):
            ready = self._reachable({*waiting, self._start}, name, position)
            if ready is None:
                return True
            if position < len(name):
                bit = 1 << ord(name[position])
                waiting = {step.next for step in ready if step.chars & bit}
        return False

    def _reachable(self, seen: set[int], name: str, position: int) -> "list[_Step] | None":
        """The steps possible at `position`; None if the match is complete."""
        steps, to_visit = [], list(seen)
        while to_visit:
            state = self._states[to_visit.pop()]
            if isinstance(state, _Match):
                return None
            if isinstance(state, _Step):
                steps.append(state)
            elif isinstance(state, _Fork) or state.holds(name, position):
                fresh = set(state.nexts) - seen
                seen |= fresh
                to_visit += fresh
        return steps

    def _add(self, state: "_State") -> int:
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: Node, after: int) -> int:
        """Add the states that match `node` and continue at `after`; returns the first."""
        self._parts += 1
        if self._parts > self._parts_max:
            raise PatternError("expression too large")
        match node:
            case Chars():
                return self._add(_Step(node.chars, after))
            case Look():
                return self._add(_Check(node.holds, [after]))
            case Sequence():
                for part in reversed(node.parts):
                    after = self._compile(part, after)
                return after
            case Choice():
                return self._add(_Fork([self._compile(part, after) for part in node.parts]))
            case Repeat():
                return self._compile_repeat(node, after)

    def _compile_repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = _Fork([after])
            first = self._add(loop)
            loop.nexts.append(self._compile(node.part, first))
        else:
            first = after
            for _ in range(node.most - node.least):
                first = self._add(_Fork([after, self._compile(node.part, first)]))
        for _ in range(node.least):
            first = self._compile(node.part, first)
        return first


# The states of a compiled expression.


class _Match:
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Step:
    chars: int
    next: int


@dataclass(frozen=True, slots=True)
class _Fork:
    nexts: list[int]


@dataclass(frozen=True, slots=True)
class _Check:
    holds: Holds
    nexts: list[int]


_State = _Match | _Step | _Fork | _Check
