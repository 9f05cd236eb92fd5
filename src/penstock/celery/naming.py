"""From the names of queues and exchanges, which can be anything, to those that NSQ allows.

Legal names stay as they are. In others each byte that NSQ does not know is written `-x` and two hex
digits, and so is a hyphen before an `x`, so that two names never become the same:
`celery@web1.celery.pidbox` is `celery-x40web1.celery.pidbox`. What is too long then is cut, and
ended by a hash of all of it.
"""

import hashlib
import re

from penstock.common.names import EPHEMERAL_SUFFIX, NAME_BYTES_MAX

__all__ = ["ephemeral", "nsq_name"]

_FOREIGN = re.compile(rb"[^.a-zA-Z0-9_-]|-(?=x)")

_HASH_DIGITS = 16
_HASH_MARK = "-h"


def nsq_name(name: str) -> str:
    """What a queue or an exchange of this name is called in NSQ."""
    return _shortened(_escaped(name), NAME_BYTES_MAX)


def ephemeral(name: str) -> str:
    """The same, for what goes with the last who listens."""
    return _shortened(_escaped(name), NAME_BYTES_MAX - len(EPHEMERAL_SUFFIX)) + EPHEMERAL_SUFFIX


def _escaped(name: str) -> str:
    return _FOREIGN.sub(lambda found: b"-x%02x" % ord(found[0]), name.encode()).decode()


def _shortened(name: str, length_max: int) -> str:
    if len(name) <= length_max:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]
    return name[: length_max - len(_HASH_MARK) - _HASH_DIGITS] + _HASH_MARK + digest
