"""Implementations of the command-line tools, such as nsq_tail and `penstock top`; `penstock.cli`
has their options and entry points."""
