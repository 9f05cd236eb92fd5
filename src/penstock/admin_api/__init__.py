"""Typed clients for the HTTP APIs of nsqd and nsqlookupd, and the view of a whole cluster."""
