import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.names import file_name, is_ephemeral, is_valid, maybe_name, name_of_file

NAME_CHARACTERS = ".abcxyzABCXYZ0189_-"

valid_names = st.builds(
    str.__add__,
    st.text(NAME_CHARACTERS, min_size=1, max_size=54),
    st.sampled_from(["", "#ephemeral"]),
)


@pytest.mark.parametrize(
    "name", ["a", "a" * 64, "Orders.v1_x-Y", ".", "..", "-", "a#ephemeral", "a" * 54 + "#ephemeral"]
)
def test_valid_names_are_accepted(name: str) -> None:
    assert is_valid(name)
    assert name == maybe_name(name.encode())


TOO_LONG = ["a" * 65, "a" * 55 + "#ephemeral"]
WRONG_SUFFIX = ["#ephemeral", "a#ephemeral2", "a#eph", "a#ephemeral\n", "a#ephemeral#ephemeral"]
WRONG_CHARACTERS = ["a b", "a\n", "\na", "a/b", "é", "\N{ARABIC-INDIC DIGIT THREE}", "a\x00", "a*"]


@pytest.mark.parametrize("name", ["", *TOO_LONG, *WRONG_SUFFIX, *WRONG_CHARACTERS])
def test_invalid_names_are_refused(name: str) -> None:
    assert not is_valid(name)
    assert maybe_name(name.encode()) is None


def test_bytes_that_are_not_text_are_no_name() -> None:
    assert maybe_name(b"\xff\xfe") is None


def test_the_suffix_makes_a_name_ephemeral() -> None:
    assert is_ephemeral("a#ephemeral")
    assert not is_ephemeral("ephemeral")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("Orders.v1", "+orders.v1"),
        (".", "%2e"),
        ("..", "%2e."),
        (".Hidden", "%2e+hidden"),
        ("a#ephemeral", "a#ephemeral"),
    ],
)
def test_file_names_are_readable(name: str, expected: str) -> None:
    assert expected == file_name(name)


@given(valid_names, valid_names)
def test_distinct_names_have_distinct_files_even_where_case_is_folded(one: str, other: str) -> None:
    assert (one == other) == (file_name(one).lower() == file_name(other).lower())


@given(valid_names)
def test_no_name_leaves_its_folder_or_hides(name: str) -> None:
    assert "/" not in file_name(name)
    assert not file_name(name).startswith(".")


@given(st.text(NAME_CHARACTERS, min_size=1, max_size=64))
def test_a_file_name_converts_back_to_the_name(name: str) -> None:
    assert name == name_of_file(file_name(name))


@pytest.mark.parametrize(
    "file",
    ["", ".", "..", ".a", "A", "+A", "+", "a+", "%2f", "a%2e", "%2", "lost+found ", "a" * 65],
)
def test_other_file_names_convert_to_no_name(file: str) -> None:
    assert name_of_file(file) is None
