"""How kombu learns of `nsq://`, without an import in anybody's code.

kombu has a table of transports, and no entry point for others to add to it. But it loads the entry
points of its serializers when it is imported, so there is one that leads here: loading this module
fills in the table, and what is registered as a serializer is a name without functions. kombu is
half imported at that moment, so nothing else may be imported here.
"""

from kombu.transport import TRANSPORT_ALIASES

__all__ = ["SCHEMES", "no_serializer"]

SCHEMES = ("nsq", "nsqs", "nsq+lookupd", "nsqs+lookupd")
"""What a broker's URL can begin with."""

_TRANSPORT = "penstock.celery.transport:Transport"

TRANSPORT_ALIASES.update(dict.fromkeys(SCHEMES, _TRANSPORT))

# Encoder, decoder, content type and encoding, as kombu wants them of an entry point.
no_serializer = (None, None, "application/x-nsq-registers-a-transport", "binary")
