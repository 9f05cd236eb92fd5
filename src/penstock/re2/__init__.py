"""RE2 regular expressions for topic and channel names.

    pattern     Pattern: a compiled expression; compile_pattern caches them
    syntax      the parser, which raises BadPattern

Go programs use this syntax: auth servers send it to nsqd, and `nsq_to_file -topic-pattern` has it.
"""

from penstock.re2.pattern import Pattern, compile_pattern
from penstock.re2.syntax import BadPattern

__all__ = ["BadPattern", "Pattern", "compile_pattern"]
