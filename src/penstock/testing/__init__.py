"""Supported helpers for tests: a clock set by hand, files in memory, files that fail."""
