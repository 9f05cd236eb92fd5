"""Text formats for pages: message bodies (as JSON, text or hex), counts, rates, sizes, times. Pure.

The results are plain text; templates escape them.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from penstock.common.clock import SECOND_NS

__all__ = [
    "FormattedBody",
    "ago",
    "bytes_text",
    "clock_text",
    "commas",
    "compact",
    "format_body",
    "rate",
    "sparkline_points",
]

# Longer bodies are cut: a page with megabytes of text would be slow and hard to read.
SHOWN_BYTES_MAX = 16 * 1024
PREVIEW_CHARS = 160

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 96, 22

_BYTES_PER_LINE = 16
# Control characters that are allowed in a text.
_TEXT_CONTROLS = frozenset("\t\n\r")


@dataclass(frozen=True, slots=True)
class FormattedBody:
    """A message body as a page displays it."""

    kind: str  # json, text, hex or empty
    size_bytes: int
    preview: str  # one line
    text: str
    is_cut: bool


def format_body(body: str | None, body_base64: str | None) -> FormattedBody:
    """Format a body as nsqd sends it: as text, or base64-encoded if it is not valid UTF-8."""
    if body is not None:
        return _format_text(body)
    try:
        raw = base64.b64decode(body_base64 or "", validate=True)
    except binascii.Error:
        raw = (body_base64 or "").encode()
    return _format_bytes(raw)


def _format_text(body: str) -> FormattedBody:
    raw = body.encode(errors="replace")
    if not body:
        return FormattedBody("empty", 0, "", "", is_cut=False)
    if any(ord(char) < 32 and char not in _TEXT_CONTROLS for char in body[:SHOWN_BYTES_MAX]):
        return _format_bytes(raw)
    pretty = _indent_json(body)
    text = body if pretty is None else pretty
    preview = " ".join(body[: 2 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]
    kind = "text" if pretty is None else "json"
    is_cut = len(text) > SHOWN_BYTES_MAX
    return FormattedBody(kind, len(raw), preview, text[:SHOWN_BYTES_MAX], is_cut)


def _indent_json(body: str) -> str | None:
    """Indent a JSON object or array, keeping all digits of numbers. None for any other text."""
    if body.lstrip()[:1] not in ("{", "[") or len(body) > 64 * SHOWN_BYTES_MAX:
        return None
    try:
        return msgspec.json.format(body, indent=2)
    except (msgspec.DecodeError, RecursionError):
        return None


def _format_bytes(raw: bytes) -> FormattedBody:
    head = raw[: SHOWN_BYTES_MAX // 4]
    lines = [
        _hex_line(at, head[at : at + _BYTES_PER_LINE])
        for at in range(0, len(head), _BYTES_PER_LINE)
    ]
    preview = raw[:32].hex(" ")
    return FormattedBody(
        "hex" if raw else "empty", len(raw), preview, "\n".join(lines), raw != head
    )


def _hex_line(at: int, piece: bytes) -> str:
    readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
    return f"{at:08x}  {piece.hex(' '):<{3 * _BYTES_PER_LINE - 1}}  {readable}"


def commas(count: float) -> str:
    """With thousands separators: `1,234,567`."""
    return f"{count:,.0f}"


def compact(count: float) -> str:
    """At most five characters: `1,234`, `12.3k`, `4.56M`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= size:
            scaled = count / min(size, 1e3) if letter == "k" else count / size
            return f"{scaled:.3g}{letter}" if abs(scaled) < 999.5 else f"{scaled:.0f}{letter}"
    return f"{count:,.0f}"


def rate(per_second: float) -> str:
    """Messages per second, with one decimal if below 10."""
    if per_second == 0:
        return "0"
    if abs(per_second) < 9.95:
        return f"{per_second:.1f}"
    return compact(per_second)


def bytes_text(count: float | None) -> str:
    """With a unit: `512 B`, `1.5 MB`."""
    if count is None:
        return "–"  # noqa: RUF001 (an en dash)
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def ago(seconds: float) -> str:
    """Duration in at most two units: `1d 1h`."""
    seconds = max(int(seconds), 0)
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for letter, size in units:
        count, seconds = divmod(seconds, size)
        if count or (letter == "s" and not parts):
            parts.append(f"{count}{letter}")
    return " ".join(parts[:2])


def clock_text(timestamp_ns: int) -> str:
    """Date and time in UTC, with milliseconds."""
    at = datetime.fromtimestamp(timestamp_ns / SECOND_NS, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def sparkline_points(values: Sequence[float]) -> str:
    """Points of an SVG polyline, scaled to the highest value."""
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    step = SPARKLINE_WIDTH / (len(values) - 1)
    height = SPARKLINE_HEIGHT - 3
    return " ".join(
        f"{number * step:.1f},{1.5 + height * (1 - max(value, 0) / top):.1f}"
        for number, value in enumerate(values)
    )
