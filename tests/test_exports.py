"""Every module says what it offers, and offers what it says."""

import importlib
import pkgutil

import pytest

import penstock
import pyspark_nsq

PACKAGES = (penstock, pyspark_nsq)

# A package without contents of its own need not list them.
MODULES = [
    module.name
    for package in PACKAGES
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", ["penstock", "pyspark_nsq", *MODULES])
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
