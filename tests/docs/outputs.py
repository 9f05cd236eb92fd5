"""Compares the output of a program with the output on a page.

Words and small numbers must be equal. Ignored are values that differ between runs: times, ids,
numbers of nine digits and more, numbers with a fraction, and the width of columns. `...` matches
any text, and on its own line any lines.
"""

import json
import re

__all__ = ["alike", "answers_alike"]

_LOOSE = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?", None),  # a time
    (r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?", None),
    (r"\b\d\d:\d\d:\d\d(?:\.\d+)?", None),
    (r"\d{4}-\d\d-\d\d", None),
    (r"\bhour=\d\d", None),
    (r"\b[0-9a-f]{8}:\d{9,}\b", None),  # a position
    (r"\b[0-9a-f]{16}\b", None),  # an id
    (r"\b\d{9,}\b", None),  # a sequence number, nanoseconds
    (r"(?<![\d.])\d+\.\d+(?![\d.])", None),  # seconds, megabytes
    (r"(?:(?<=\n)|^)\.{3}\n", r"(?:.*\n)*?"),
    (r"\.{3}", r"(?:.|\n)*?"),
    (r"\s+", r"\s+"),
]
_TOKEN = re.compile("|".join(f"({pattern})" for pattern, _ in _LOOSE))


def alike(shown: str, real: str) -> bool:
    """Whether the printed text matches the shown text."""
    return re.fullmatch(_pattern(shown.strip()), real.strip()) is not None


def answers_alike(shown: str, real: str) -> bool:
    """Whether JSON matches (one object, or one per line): same keys, and values of
    the same types.
    """
    return _shapes(shown) == _shapes(real)


def _pattern(shown: str) -> str:
    parts = []
    end = 0
    for token in _TOKEN.finditer(shown):
        parts.append(re.escape(shown[end : token.start()]))
        pattern, stands_for = _LOOSE[(token.lastindex or 1) - 1]
        parts.append(stands_for or pattern)
        end = token.end()
    return "".join([*parts, re.escape(shown[end:])])


def _shapes(text: str) -> list[object]:
    decoder = json.JSONDecoder()
    shapes: list[object] = []
    text = text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        shapes.append(_shape(value))
        text = text[end:].lstrip()
    return shapes


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shape(of) for key, of in value.items()}
    if isinstance(value, list):
        return [_shape(each) for each in value[:1]]
    return type(value).__name__
