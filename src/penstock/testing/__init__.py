"""Helpers for tests, also for users: manual clock, files in memory, files that fail."""

from penstock.testing.clock import ManualClock
from penstock.testing.files import FaultyFiles, MemoryFiles, SimulatedCrash

__all__ = ["FaultyFiles", "ManualClock", "MemoryFiles", "SimulatedCrash"]
