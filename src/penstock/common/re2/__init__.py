"""RE2 regular expressions for topic and channel names.

    pattern     Pattern: a compiled expression; compile_pattern caches them
    syntax      the parser, which raises PatternError

NSQ uses this syntax, which is that of Go, for the permissions that auth servers send to nsqd and
for `nsq_to_file -topic-pattern`.
"""

from penstock.common.re2.pattern import Pattern, compile_pattern
from penstock.common.re2.syntax import PatternError

__all__ = ["Pattern", "PatternError", "compile_pattern"]
