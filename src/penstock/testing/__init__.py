"""Supported helpers for tests: a clock set by hand, files in memory, files that fail."""

from penstock.testing.clock import ManualClock

__all__ = ["ManualClock"]
