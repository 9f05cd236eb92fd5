"""Node ids: the upper 10 bits of the message ids of one nsqd."""

import os
import zlib
from collections.abc import Callable, Collection

__all__ = ["NODE_IDS", "choose_node_id", "former_node_id"]

NODE_IDS = 1024


def choose_node_id(random_bytes: Callable[[int], bytes], used: Collection[int] = ()) -> int:
    """A random node id that is not in `used`; at least one must be free."""
    free = sorted(set(range(NODE_IDS)).difference(used))
    return free[int.from_bytes(random_bytes(4)) % len(free)]


def former_node_id(shard: int = 0) -> int:
    """The default node id of versions that did not store it: a hash of the host name, plus the
    number of the shard."""
    import hashlib  # noqa: PLC0415 (OpenSSL: slow to load, and rarely needed)

    digest = hashlib.md5(os.uname().nodename.encode(), usedforsecurity=False).digest()
    return (zlib.crc32(digest) + shard) % NODE_IDS
