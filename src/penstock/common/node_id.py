"""Node ids: the upper 10 bits of the message ids of one nsqd."""

from collections.abc import Callable, Collection

__all__ = ["NODE_IDS", "choose_node_id"]

NODE_IDS = 1024


def choose_node_id(random_bytes: Callable[[int], bytes], used: Collection[int] = ()) -> int:
    """A random node id that is not in `used`; at least one must be free."""
    free = sorted(set(range(NODE_IDS)).difference(used))
    return free[int.from_bytes(random_bytes(4)) % len(free)]
