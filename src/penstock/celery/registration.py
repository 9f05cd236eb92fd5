"""Registers the `nsq://` URL schemes with kombu, without an import in the user's code.

kombu has a table of transports, but no entry point for further ones. It loads the entry points of
serializers when it is imported, so Penstock has one that points here: loading this module fills in
the table, and the registered serializer is an unused dummy. kombu is only partly imported at that
moment, so this module must not import anything else.
"""

from kombu.transport import TRANSPORT_ALIASES

__all__ = ["SCHEMES", "no_serializer"]

SCHEMES = ("nsq", "nsqs", "nsq+lookupd", "nsqs+lookupd")
"""The URL schemes of the broker."""

_TRANSPORT = "penstock.celery.transport:Transport"

TRANSPORT_ALIASES.update(dict.fromkeys(SCHEMES, _TRANSPORT))

# Encoder, decoder, content type and encoding: the form that kombu's entry point requires.
no_serializer = (None, None, "application/x-nsq-registers-a-transport", "binary")
