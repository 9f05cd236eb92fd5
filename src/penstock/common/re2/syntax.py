r"""Parser of RE2 regular expressions in Go's syntax.

Differences from Python: `$` matches only at the end, `\z` exists and `\Z` does not, classes may be
`[[:alpha:]]` and `\pN`, flags apply from their position on, and there is no lookaround.

An expression is matched only with names of topics and channels, which keeps the tree simple. A name
is ASCII, so that a character class is a bit set in an integer. A name contains no line break. A
name has at most 64 characters, so that a repeat count above 65 is reduced to 65.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.common.names import NAME_BYTES_MAX

__all__ = [
    "Chars",
    "Choice",
    "Holds",
    "Look",
    "Node",
    "PatternError",
    "Repeat",
    "Sequence",
    "parse",
]

NESTING_MAX = 100
REPEAT_MAX = 1000  # Go's

# Higher repeat counts are reduced to this: further repetitions could match only the empty string.
REPEAT_ENOUGH = NAME_BYTES_MAX + 1

_ALL = (1 << 128) - 1


class PatternError(ValueError):
    """Invalid RE2 expression, or one that is too large."""


def parse(text: str) -> "Node":
    """Parse an expression. Raises PatternError."""
    return _Parser(text).parse()


# A condition on a position in a name.
Holds = Callable[[str, int], bool]


# Nodes of the tree.


@dataclass(frozen=True, slots=True)
class Chars:
    """One of these characters, as a bit set."""

    chars: int


@dataclass(frozen=True, slots=True)
class Look:
    """The empty string, at a position that fulfils a condition."""

    holds: Holds


@dataclass(frozen=True, slots=True)
class Sequence:
    """All parts in order; without parts, the empty string."""

    parts: "list[Node]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the parts."""

    parts: "list[Node]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part, repeated from `least` to `most` times; None means no limit."""

    part: "Node"
    least: int
    most: int | None


Node = Chars | Look | Sequence | Choice | Repeat


# Sets of characters.


def _set(chars: Iterable[int]) -> int:
    bits = 0
    for char in chars:
        bits |= 1 << char if char < 128 else 0
    return bits


def _matching(expression: str) -> int:
    return _set(char for char in range(128) if re.fullmatch(expression, chr(char)))


def _folded(chars: int) -> int:
    """Add the other case of all letters."""
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
    """ASCII characters of a Unicode category, or of the scripts Latin and Common."""
    letters = _UPPER | _LOWER
    others = {"Any": _ALL, "Latin": letters, "Common": _ALL & ~letters}
    if name in others:
        return others[name]
    if not _CATEGORY.fullmatch(name):
        raise PatternError(f"unknown or unsupported class \\p{{{name}}}")
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
    """Recursive descent parser of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._group_names: set[str] = set()

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("unexpected )")
        return node

    # Tokens.

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
            raise PatternError(missing)
        self._at += 1
        return self._text[self._at - 1]

    # Grammar.

    def _choice(self) -> Node:
        parts: list[Node] = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        return Choice(parts) if len(parts) > 1 else parts[0]

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            if quoted := self._take(_QUOTED):
                parts += [self._literal(char) for char in quoted[1]]
            elif (counts := self._counts()) is not None:
                self._repeat(parts, *counts)
            elif (atom := self._atom()) is not None:
                parts.append(atom)
        return Sequence(parts)

    def _counts(self) -> tuple[int, int | None] | None:
        """Parse a repetition, such as `*` or `{2,5}`. Returns its minimum and maximum, or None if
        the pattern does not continue with a repetition."""
        if self._peek() in _REPEATS:
            return _REPEATS[self._next("")]
        counts = self._take(_COUNTS)
        if counts is None:
            return None
        least = int(counts[1][:5])  # five digits already exceed the maximum
        most = least if counts[2] is None else int(counts[3][:5]) if counts[3] else None
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            raise PatternError(f"invalid repeat count {counts[0]}")
        return min(least, REPEAT_ENOUGH), None if most is None else min(most, REPEAT_ENOUGH)

    def _repeat(self, parts: list[Node], least: int, most: int | None) -> None:
        if not parts:
            raise PatternError("nothing to repeat")
        self._accept("?")  # Non-greedy: makes no difference here.
        if self._counts() is not None:
            raise PatternError("invalid nested repetition")
        parts[-1] = Repeat(parts[-1], least, most)

    def _atom(self) -> Node | None:
        match self._next(""):
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case ".":
                return Chars(_ALL if "s" in self._flags else _ALL & ~_set([0x0A]))
            case "^":
                return Look(_is_start)
            case "$":
                return Look(_is_end)
            case "\\":
                return self._escaped()
            case char:
                return self._literal(char)

    def _group(self) -> Node | None:
        """Parse a group after its `(`; None if it contains only flags."""
        outer, self._depth = self._flags, self._depth + 1
        if self._depth > NESTING_MAX:
            raise PatternError("expression nests too deeply")
        if name := self._take(_GROUP_NAME):
            if name[1] in self._group_names:
                raise PatternError(f"duplicate group name {name[1]}")
            self._group_names.add(name[1])
        elif self._peek() == "?":
            flags = self._take(_FLAGS)
            if flags is None:
                raise PatternError("invalid or unsupported syntax after (?")
            self._flags = (self._flags | set(flags[1])) - set(flags[2] or "")
            if flags[3] == ")":
                self._depth -= 1
                return None
        node = self._choice()
        if not self._accept(")"):
            raise PatternError("missing )")
        self._flags, self._depth = outer, self._depth - 1
        return node

    def _escaped(self) -> Node:
        letter = self._peek()
        if letter in _LOOKS:
            return Look(_LOOKS[self._next("")])
        chars = self._class_escape()
        return Chars(chars) if chars is not None else self._literal(chr(self._char_escape()))

    def _literal(self, char: str) -> Node:
        if "i" in self._flags:
            # casefold() also finds the two non-ASCII characters whose other case is ASCII.
            folded = char.casefold()
            return Chars(_folded(_set([ord(folded)])) if len(folded) == 1 else 0)
        return Chars(_set([ord(char)]))

    # Classes.

    def _class(self) -> int:
        negated, chars, is_first = self._accept("^"), 0, True
        while is_first or self._peek() != "]":
            is_first = False
            if posix := self._take(_POSIX_CLASS):
                if posix[2] not in _POSIX:
                    raise PatternError(f"invalid character class {posix[0]}")
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
            raise PatternError("invalid character class range")
        return _set(range(first, min(last, 127) + 1))

    def _class_char(self) -> int:
        char = self._next("missing ]")
        return self._char_escape() if char == "\\" else ord(char)

    def _class_escape(self) -> int | None:
        r"""The set of `\d`, `\pL` and similar escapes; None for any other."""
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
        """The code of an escaped character."""
        if octal := self._take(_OCTAL):
            return int(octal[0], 8)
        if number := self._take(_HEX):
            code = int(number[1] or number[2], 16)
            if code > 0x10FFFF:
                raise PatternError(f"invalid escape sequence \\{number[0]}")
            return code
        letter = self._next("trailing backslash")
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if not letter.isascii() or letter.isalnum():
            raise PatternError(f"invalid escape sequence \\{letter}")
        return ord(letter)
