"""Shared by all programs: names, errors, time, options, log lines, and Go's quirks."""
