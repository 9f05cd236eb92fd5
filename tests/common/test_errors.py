import inspect

import pytest

from penstock.common import errors
from penstock.common.errors import Error, ProtocolError


def error_classes() -> list[type]:
    return [thing for thing in vars(errors).values() if inspect.isclass(thing)]


def test_every_error_is_exported_and_derives_from_the_base_error() -> None:
    assert sorted(errors.__all__) == sorted(each.__name__ for each in error_classes())
    assert all(issubclass(each, Error) for each in error_classes())


def test_the_tree_in_the_docstring_matches_the_classes() -> None:
    def indent(cls: type) -> int:
        return 4 + 2 * (len(inspect.getmro(cls)) - len(inspect.getmro(Error)))

    drawn = {
        line.split()[0]: len(line) - len(line.lstrip())
        for line in (errors.__doc__ or "").splitlines()
        if line.startswith("    ")
    }

    assert {each.__name__: indent(each) for each in error_classes()} == drawn


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProtocolError("E_INVALID", "invalid command X"), "E_INVALID invalid command X"),
        (ProtocolError("E_BAD_PROTOCOL"), "E_BAD_PROTOCOL"),
    ],
)
def test_a_protocol_error_reads_as_it_goes_over_the_wire(
    error: ProtocolError, expected: str
) -> None:
    assert expected == str(error)


def test_protocol_errors_are_fatal_unless_said_otherwise() -> None:
    assert ProtocolError("E_INVALID").fatal
    assert not ProtocolError("E_FIN_FAILED", fatal=False).fatal
