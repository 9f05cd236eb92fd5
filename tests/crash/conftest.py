"""Fixtures of several crash tests."""

from tests.crash.disks import disk

__all__ = ["disk"]
