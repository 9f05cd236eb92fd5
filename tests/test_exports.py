"""Every module says what it offers, and offers what it says."""

import importlib
import pkgutil

import pytest

import penstock

# A package without contents of its own need not list them.
MODULES = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]


@pytest.mark.parametrize("name", ["penstock", *MODULES])
def test_what_a_module_lists_is_there(name: str) -> None:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])

    assert [] == [entry for entry in listed if not hasattr(module, entry)]
    assert sorted(set(listed)) == sorted(listed)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_lists_what_it_offers(name: str) -> None:
    module = importlib.import_module(name)
    is_package = hasattr(module, "__path__")

    assert is_package or module.__all__
