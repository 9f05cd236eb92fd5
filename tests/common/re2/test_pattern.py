"""RE2 expressions: cases of RE2's own syntax, and comparison with Python where both agree."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.re2 import Pattern, PatternError

# Expression, names that it matches, names that it does not.
MATCHES = [
    ("", ["", "a"], []),
    ("b", ["abc", "b"], ["", "B", "ac"]),
    ("^a.c$", ["abc", "a.c"], ["ac", "xabc", "abcd"]),
    (r"\Aa\z", ["a"], ["ab", "ba"]),
    ("^$", [""], ["a"]),
    ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
    ("a||b", ["", "x"], []),
    ("^(?P<kind>a+)(?:b)(?<other>c)$", ["aabc"], ["bc"]),
    ("^a{2}$", ["aa"], ["a", "aaa"]),
    ("^a{2,}$", ["aa", "a" * 64], ["a"]),
    ("^a{1,2}?$", ["a", "aa"], ["", "aaa"]),
    ("^a{64}$", ["a" * 64], ["a" * 63]),
    ("^a{65}", [], ["a" * 64]),
    ("^(a?){1000}b$", ["b", "aab", "a" * 63 + "b"], ["a"]),
    ("^a*?b+?c??$", ["b", "aabbc"], ["ac"]),
    ("^x{,3}$|^x{01}$", [], ["xxx", "x"]),
    ("^[abc-e_-]+$", ["abcde_-"], ["f", ""]),
    ("^[]a]$|^[^]a]$", ["a", "b"], ["ab"]),
    ("^[a-]$", ["a", "-"], ["b"]),
    ("^[[:alpha:][:digit:]]+$", ["aZ9"], ["_", "."]),
    ("^[[:^alpha:]]+$", ["12_"], ["a"]),
    ("^[^[:word:]]$", [".", "-", "#"], ["_", "a"]),
    (r"^[\w.]+$", ["a_Z.9"], ["a-b"]),
    (r"^[^\d]\D\S\W$", ["abc-"], ["1bc-", "abcd"]),
    (r"^\pL\p{Nd}\P{L}\p{^L}[\pL]\p{Latin}$", ["a1__aZ"], ["11__aZ"]),
    (r"^\p{Lu}$", ["A"], ["a"]),
    (r"(?i)^\p{Lu}[b-d]e$", ["aBE", "acE"], ["aeE"]),
    ("^(?i)ab(?-i)c$", ["ABc", "abc"], ["abC"]),
    ("^(?i:a)b$", ["Ab", "ab"], ["aB"]),
    ("^(?s-m:a.)(?U)b$", ["axb"], ["ab"]),
    ("(?i)^[^a]$", ["b"], ["a", "A"]),
    ("(?i)^\u017f\u212a$", ["sk", "SK"], ["xk"]),
    ("ä", [], ["a"]),
    ("[ä-ö]|[^ä]", ["a"], [""]),
    (r"^\x61\x{62}\143\x2e$", ["abc."], ["abcd"]),
    (r"^\Qa.b\E+$", ["a.bb"], ["axb"]),
    (r"^\Q.", ["."], ["a"]),
    (r"\bb\b", ["a-b-c", "b"], ["ab"]),
    (r"a\Bb", ["ab"], ["a-b"]),
    (r"\B", ["", "ab"], ["a"]),
    (r"^a\.b\-\#\_$", ["a.b-#_"], ["axb-#_"]),
    (r"^\t|\n|\a|\f|\r|\v$", [], ["a"]),
    ("^^a$$", ["a"], ["ab"]),
    ("(^)*a(?)", ["ba"], ["b"]),
]


@pytest.mark.parametrize(("expression", "matched", "unmatched"), MATCHES)
def test_an_expression_matches_the_names_that_re2_matches(
    expression: str, matched: list[str], unmatched: list[str]
) -> None:
    pattern = Pattern(expression)

    assert matched == [name for name in (*matched, *unmatched) if pattern.search(name)]


def test_single_braces_and_brackets_are_literals() -> None:
    for expression in ("{", "}", "]", "a{", "a{x}", "a{1"):
        assert not Pattern(expression).search("a")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(", "missing )"),
        ("a)", "unexpected )"),
        ("[", "missing ]"),
        ("[]", "missing ]"),
        ("[a", "missing ]"),
        ("[z-a]", "invalid character class range"),
        (r"[a-\d]", r"invalid escape sequence \d"),
        ("[[:nope:]]", "invalid character class [:nope:]"),
        ("*", "nothing to repeat"),
        ("a|+", "nothing to repeat"),
        ("(?i)*", "nothing to repeat"),
        ("a**", "invalid nested repetition"),
        ("a*?+", "invalid nested repetition"),
        ("a{2}{3}", "invalid nested repetition"),
        ("a{1001}", "invalid repeat count {1001}"),
        ("a{2,1}", "invalid repeat count {2,1}"),
        ("a{99999999999999999999}", "invalid repeat count {99999999999999999999}"),
        ("(?=a)", "invalid or unsupported syntax after (?"),
        ("(?<!a)", "invalid or unsupported syntax after (?"),
        ("(?i", "invalid or unsupported syntax after (?"),
        ("(?-)", "invalid or unsupported syntax after (?"),
        ("(?P<a>x)(?P<a>y)", "duplicate group name a"),
        (r"\Z", r"invalid escape sequence \Z"),
        (r"\C", r"invalid escape sequence \C"),
        (r"\1", r"invalid escape sequence \1"),
        (r"\p{Klingon}", r"unknown or unsupported class \p{Klingon}"),
        (r"\p", r"invalid escape sequence \p"),
        (r"\x{110000}", r"invalid escape sequence \x{110000}"),
        (r"\xg", r"invalid escape sequence \x"),
        ("a\\", "trailing backslash"),
        ("[\\", "trailing backslash"),
        ("(" * 101 + ")" * 101, "expression nests too deeply"),
        ("(" * 100_000, "expression nests too deeply"),
        ("((a{60}){60}){60}", "expression too large"),
        ("(" * 50 + "){1000}" * 50, "expression too large"),
    ],
)
def test_invalid_expressions_are_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(PatternError) as refusal:
        Pattern(expression)

    assert reason == str(refusal.value)


@pytest.mark.parametrize(
    "expression", ["^(a+)+$", "(a*)*(a|aa)+$", "((a*b|a)*b|a)*c$", "(.*)(.*)(.*)(.*)(.*)=$"]
)
def test_no_name_is_matched_by_backtracking(expression: str) -> None:
    """With backtracking, this test would exceed its timeout."""
    assert not Pattern(expression).search("a" * 63 + "-")


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}", "*?"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, repeats).map(lambda parts: f"(?:{parts[0]}){parts[1]}"),
        inner.map(lambda part: f"(?i:{part})"),
    )


# Without \B: before Python 3.14 it does not match in an empty text.
SHARED = st.recursive(
    st.sampled_from(["a", "b", "A", ".", "^", "$", "[ab]", "[^a]", r"\w", r"\W", r"\b", ""]),
    _grown,
    max_leaves=8,
)


@settings(max_examples=300)
@given(SHARED, st.text("abA-", max_size=6))
def test_matches_equal_those_of_python_where_the_syntaxes_agree(expression: str, name: str) -> None:
    assert bool(re.search(expression, name, re.ASCII)) == Pattern(expression).search(name)
