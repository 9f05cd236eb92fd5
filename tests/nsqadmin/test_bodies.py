"""How bodies are shown."""

import pytest

from penstock.nsqadmin.bodies import SHOWN_BYTES_MAX, shown


@pytest.mark.parametrize(
    ("body", "base64", "kind", "text"),
    [
        ('{"a":1.10,"b":[]}', None, "json", '{\n  "a": 1.10,\n  "b": []\n}'),
        ('{"n":123456789012345678901}', None, "json", '{\n  "n": 123456789012345678901\n}'),
        ("{not json", None, "text", "{not json"),
        ("42", None, "text", "42"),
        ("line\nline", None, "text", "line\nline"),
        ("<script>", None, "text", "<script>"),
        ("", None, "empty", ""),
        ("a\x00b", None, "hex", "00000000  61 00 62" + " " * 41 + "a.b"),
        (None, "//4=", "hex", "00000000  ff fe" + " " * 44 + ".."),
        (None, "not base64!", "hex", None),
    ],
)
def test_a_body_is_shown_as_what_it_is(
    body: str | None, base64: str | None, kind: str, text: str | None
) -> None:
    found = shown(body, base64)

    assert kind == found.kind
    assert text in (None, found.text)
    assert not found.is_cut


def test_only_the_beginning_of_a_large_body_is_shown() -> None:
    found = shown("x" * (SHOWN_BYTES_MAX + 1), None)

    assert (SHOWN_BYTES_MAX, True) == (len(found.text), found.is_cut)
    assert SHOWN_BYTES_MAX + 1 == found.size_bytes


def test_a_deeply_nested_body_is_a_text() -> None:
    assert "text" == shown("[" * 5000, None).kind
