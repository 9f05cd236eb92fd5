r"""RE2's regular expressions, for names of topics and channels.

Auth servers write the syntax that the reference reads, which is Go's. Python's `re` reads much of
it otherwise (`$`, `\z`, `[[:alpha:]]`, `\pN`, flags within), and takes exponential time over
expressions that RE2 answers at once. So these are matched here, RE2's way: by walking through all
states that the expression can be in, side by side, which takes a time that is bounded by its size.

Two things make that small. Nobody asks where a match is, only whether there is one. And a name is
ASCII, so that a class of characters is the bits of an integer, and has at most 64 of them, so that
no repetition has to be tried more than 65 times: a round that consumes nothing changes nothing.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

from penstock.names import NAME_BYTES_MAX

__all__ = ["BadPattern", "Pattern", "compile_pattern"]

# A search takes up to the product of this and the length of the name.
STATES_MAX = 2000
NESTING_MAX = 100
REPEAT_MAX = 1000  # Go's

_ALL = (1 << 128) - 1


class BadPattern(ValueError):
    """Not an expression of RE2's, or one that is too large."""


# The same few expressions come with every client.
@lru_cache(maxsize=4096)
def compile_pattern(text: str) -> "Pattern":
    """Raises BadPattern."""
    return Pattern(text)


class Pattern:
    """A compiled expression."""

    __slots__ = ("_start", "_states", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._states: list[_State] = []
        self._start = self._compile(_Parser(text).parse(), self._add(_Match()))

    def search(self, name: str) -> bool:
        """Whether any part of `name`, which is a valid name or empty, matches."""
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
        """The steps that can be taken from here; None if the end has been reached."""
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
        if len(self._states) >= STATES_MAX:
            raise BadPattern("expression too large")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: "_Node", after: int) -> int:
        """Adds the states that match `node` and go on to `after`; returns the first of them."""
        match node:
            case _Chars():
                return self._add(_Step(node.chars, after))
            case _Look():
                return self._add(_Check(node.holds, [after]))
            case _Sequence():
                for part in reversed(node.parts):
                    after = self._compile(part, after)
                return after
            case _Choice():
                return self._add(_Fork([self._compile(part, after) for part in node.parts]))
            case _Repeat():
                return self._compile_repeat(node, after)

    def _compile_repeat(self, node: "_Repeat", after: int) -> int:
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


class _Step:
    __slots__ = ("chars", "next")

    def __init__(self, chars: int, next: int) -> None:
        self.chars = chars
        self.next = next


class _Fork:
    __slots__ = ("nexts",)

    def __init__(self, nexts: list[int]) -> None:
        self.nexts = nexts


class _Check:
    __slots__ = ("holds", "nexts")

    def __init__(self, holds: "_Holds", nexts: list[int]) -> None:
        self.holds = holds
        self.nexts = nexts


_State = _Match | _Step | _Fork | _Check

# What is asked about a position in a name.
_Holds = Callable[[str, int], bool]


# The tree that an expression is parsed into.


class _Chars:
    __slots__ = ("chars",)

    def __init__(self, chars: int) -> None:
        self.chars = chars


class _Look:
    __slots__ = ("holds",)

    def __init__(self, holds: _Holds) -> None:
        self.holds = holds


class _Sequence:
    __slots__ = ("parts",)

    def __init__(self, parts: "list[_Node]") -> None:
        self.parts = parts


class _Choice:
    __slots__ = ("parts",)

    def __init__(self, parts: "list[_Node]") -> None:
        self.parts = parts


class _Repeat:
    __slots__ = ("least", "most", "part")

    def __init__(self, part: "_Node", least: int, most: int | None) -> None:
        self.part = part
        self.least = min(least, NAME_BYTES_MAX + 1)
        self.most = None if most is None else min(most, NAME_BYTES_MAX + 1)


_Node = _Chars | _Look | _Sequence | _Choice | _Repeat


# Sets of characters.


def _set(chars: Iterable[int]) -> int:
    bits = 0
    for char in chars:
        bits |= 1 << char if char < 128 else 0
    return bits


def _matching(expression: str) -> int:
    return _set(char for char in range(128) if re.fullmatch(expression, chr(char)))


def _folded(chars: int) -> int:
    """With the other case of its letters."""
    upper, lower = chars & _UPPER, chars & _LOWER
    return chars | upper << 32 | lower >> 32


_UPPER, _LOWER = _matching("[A-Z]"), _matching("[a-z]")
_DIGIT, _SPACE, _WORD = _matching("[0-9]"), _matching("[\t\n\f\r ]"), _matching("[0-9A-Za-z_]")

_PERL = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_PERL |= {letter.upper(): _ALL & ~chars for letter, chars in _PERL.items()}

_POSIX = {
    "alnum": _DIGIT | _UPPER | _LOWER,
    "alpha": _UPPER | _LOWER,
    "ascii": _ALL,
    "blank": _matching("[\t ]"),
    "cntrl": _matching("[\0-\x1f\x7f]"),
    "digit": _DIGIT,
    "graph": _matching("[!-~]"),
    "lower": _LOWER,
    "print": _matching("[ -~]"),
    "punct": _matching("[!-~]") & ~(_DIGIT | _UPPER | _LOWER),
    "space": _SPACE | 1 << 0x0B,
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _matching("[0-9A-Fa-f]"),
}

_CATEGORY = re.compile("L[ultmo]?|M[nce]?|N[dlo]?|P[cdseifo]?|S[mcko]?|Z[slp]?|C[cfso]?")


def _unicode(name: str) -> int:
    """The ASCII of one of Unicode's categories, or of the two scripts that have any."""
    letters = _UPPER | _LOWER
    others = {"Any": _ALL, "Latin": letters, "Common": _ALL & ~letters}
    if name in others:
        return others[name]
    if not _CATEGORY.fullmatch(name):
        raise BadPattern(f"unknown or unsupported class \\p{{{name}}}")
    return _set(c for c in range(128) if unicodedata.category(chr(c)).startswith(name))


# Positions.


def _is_start(_: str, position: int) -> bool:
    return position == 0


def _is_end(name: str, position: int) -> bool:
    return position == len(name)


def _is_boundary(name: str, position: int) -> bool:
    before = position > 0 and bool(_WORD >> ord(name[position - 1]) & 1)
    after = position < len(name) and bool(_WORD >> ord(name[position]) & 1)
    return before != after


def _is_no_boundary(name: str, position: int) -> bool:
    return not _is_boundary(name, position)


# A name has no line but the one it is, so that (?m) changes nothing.
_LOOKS = {"A": _is_start, "z": _is_end, "b": _is_boundary, "B": _is_no_boundary}

_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTS = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}")
_FLAGS = re.compile(r"\?([imsU]*)(?:-([imsU]+))?([:)])")
_GROUP_NAME = re.compile(r"\?P?<(\w+)>", re.ASCII)
_POSIX_CLASS = re.compile(r"\[:(\^?)([a-z]+):\]")
_UNICODE_CLASS = re.compile(r"([pP])(?:\{(\^?)(\w+)\}|([A-Z]))", re.ASCII)
_HEX = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_CONTROLS = {"a": 0x07, "f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}


class _Parser:
    """Reads one expression, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._group_names: set[str] = set()

    def parse(self) -> _Node:
        """The whole of it. Raises BadPattern."""
        node = self._choice()
        if self._at < len(self._text):
            raise BadPattern("unexpected )")
        return node

    # Reading on.

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _accept(self, start: str) -> bool:
        found = self._text.startswith(start, self._at)
        self._at += len(start) if found else 0
        return found

    def _take(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        match = expression.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return match

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise BadPattern(missing)
        self._at += 1
        return self._text[self._at - 1]

    # From the whole to its parts.

    def _choice(self) -> _Node:
        parts: list[_Node] = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        return _Choice(parts) if len(parts) > 1 else parts[0]

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            if quoted := self._take(_QUOTED):
                parts += [self._literal(char) for char in quoted[1]]
            elif (counts := self._counts()) is not None:
                self._repeat(parts, *counts)
            elif (atom := self._atom()) is not None:
                parts.append(atom)
        return _Sequence(parts)

    def _counts(self) -> tuple[int, int | None] | None:
        """How often to repeat what came before, if that is what is said here."""
        if self._peek() in _REPEATS:
            return _REPEATS[self._next("")]
        counts = self._take(_COUNTS)
        if counts is None:
            return None
        least = int(counts[1][:5])  # five digits are too many already
        most = least if counts[2] is None else int(counts[3][:5]) if counts[3] else None
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            raise BadPattern(f"invalid repeat count {counts[0]}")
        return least, most

    def _repeat(self, parts: list[_Node], least: int, most: int | None) -> None:
        if not parts:
            raise BadPattern("nothing to repeat")
        self._accept("?")  # As few as possible: that is no other match.
        if self._counts() is not None:
            raise BadPattern("invalid nested repetition")
        parts[-1] = _Repeat(parts[-1], least, most)

    def _atom(self) -> _Node | None:
        match self._next(""):
            case "(":
                return self._group()
            case "[":
                return _Chars(self._class())
            case ".":
                return _Chars(_ALL if "s" in self._flags else _ALL & ~_set([0x0A]))
            case "^":
                return _Look(_is_start)
            case "$":
                return _Look(_is_end)
            case "\\":
                return self._escaped()
            case char:
                return self._literal(char)

    def _group(self) -> _Node | None:
        """What is in the parentheses; None for flags alone."""
        outer, self._depth = self._flags, self._depth + 1
        if self._depth > NESTING_MAX:
            raise BadPattern("expression nests too deeply")
        if name := self._take(_GROUP_NAME):
            if name[1] in self._group_names:
                raise BadPattern(f"duplicate group name {name[1]}")
            self._group_names.add(name[1])
        elif self._peek() == "?":
            flags = self._take(_FLAGS)
            if flags is None:
                raise BadPattern("invalid or unsupported syntax after (?")
            self._flags = (self._flags | set(flags[1])) - set(flags[2] or "")
            if flags[3] == ")":
                self._depth -= 1
                return None
        node = self._choice()
        if not self._accept(")"):
            raise BadPattern("missing )")
        self._flags, self._depth = outer, self._depth - 1
        return node

    def _escaped(self) -> _Node:
        letter = self._peek()
        if letter in _LOOKS:
            return _Look(_LOOKS[self._next("")])
        chars = self._class_escape()
        return _Chars(chars) if chars is not None else self._literal(chr(self._char_escape()))

    def _literal(self, char: str) -> _Node:
        if "i" in self._flags:
            # Two characters beyond ASCII have their other case in it; casefold() finds those.
            folded = char.casefold()
            return _Chars(_folded(_set([ord(folded)])) if len(folded) == 1 else 0)
        return _Chars(_set([ord(char)]))

    # Classes.

    def _class(self) -> int:
        negated, chars, is_first = self._accept("^"), 0, True
        while is_first or self._peek() != "]":
            is_first = False
            if posix := self._take(_POSIX_CLASS):
                if posix[2] not in _POSIX:
                    raise BadPattern(f"invalid character class {posix[0]}")
                chars |= _ALL & ~_POSIX[posix[2]] if posix[1] else _POSIX[posix[2]]
            else:
                chars |= self._class_item()
        self._at += 1
        chars = _folded(chars) if "i" in self._flags else chars
        return _ALL & ~chars if negated else chars

    def _class_item(self) -> int:
        if self._accept("\\"):
            chars = self._class_escape()
            if chars is not None:
                return chars
            self._at -= 1
        first = last = self._class_char()
        following = self._text[self._at : self._at + 2]
        if following[:1] == "-" and following[1:] not in ("", "]"):
            self._at += 1
            last = self._class_char()
        if last < first:
            raise BadPattern("invalid character class range")
        return _set(range(first, min(last, 127) + 1))

    def _class_char(self) -> int:
        char = self._next("missing ]")
        return self._char_escape() if char == "\\" else ord(char)

    def _class_escape(self) -> int | None:
        r"""The set that `\d`, `\pL` and their like stand for."""
        if self._peek() in _PERL:
            chars = _PERL[self._next("")]
        elif name := self._take(_UNICODE_CLASS):
            chars = _unicode(name[3] or name[4])
            chars = _folded(chars) if "i" in self._flags else chars
            chars = chars if (name[1] == "P") == bool(name[2]) else _ALL & ~chars
        else:
            return None
        return chars

    def _char_escape(self) -> int:
        """The code of the one character that an escape stands for."""
        if octal := self._take(_OCTAL):
            return int(octal[0], 8)
        if number := self._take(_HEX):
            code = int(number[1] or number[2], 16)
            if code > 0x10FFFF:
                raise BadPattern(f"invalid escape sequence \\{number[0]}")
            return code
        letter = self._next("trailing backslash")
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if not letter.isascii() or letter.isalnum():
            raise BadPattern(f"invalid escape sequence \\{letter}")
        return ord(letter)
