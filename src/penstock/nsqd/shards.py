"""What `--shards N` comes to: N sets of options, one for each nsqd on this machine.

Shard 0 is the nsqd that there would be without: the data path, the ports and the node id are those
that were given, so that one nsqd becomes several, and several one again, without moving a file. Any
other shard K has the folder `shard-K` in the data path, ports PORT_STEP * K higher, and a node id
that is K higher.

A shard that the data path has, but that is not wanted any more, is *retiring*: it takes no more
messages, and ends when its consumers have taken those it has. So no number of shards loses any.

Nothing here knows processes; see `penstock.nsqd.supervisor`.
"""

import os
from dataclasses import dataclass, replace

from penstock.common.addresses import PORT_MAX, has_port
from penstock.common.errors import ConfigError
from penstock.nsqd.options import NODE_IDS, NsqdOptions
from penstock.storage.layout import FORMAT_NAME, maybe_shard, shard_name

__all__ = ["PORT_STEP", "Shard", "shard_folders", "shards_of"]

# From one nsqd's ports to the next one's: far enough to have TCP, HTTP and HTTPS in between, and to
# leave alone the ports of nsqlookupd and nsqadmin.
PORT_STEP = 100


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the nsqds."""

    number: int
    options: NsqdOptions
    is_retiring: bool = False


def shards_of(options: NsqdOptions) -> list[Shard]:
    """Those that are wanted, and those that are retiring. One alone is an nsqd like any other.

    Raises ConfigError if there are no such ports.
    """
    wanted = range(options.shards)
    retiring = [number for number in shard_folders(options.data_path) if number not in wanted]
    if not retiring and options.shards == 1:
        return [Shard(0, options)]
    return [
        *(Shard(number, _options_of(number, options)) for number in wanted),
        *(Shard(number, _retiring(_options_of(number, options)), True) for number in retiring),
    ]


def shard_folders(data_path: str) -> dict[int, str]:
    """The folders of a data path that are data paths of shards, by number."""
    try:
        names = os.listdir(data_path or os.curdir)
    except OSError:
        return {}  # Whoever opens it will say what is wrong with it.
    numbers = sorted(number for name in names if (number := maybe_shard(name)) is not None)
    folders = {number: os.path.join(data_path, shard_name(number)) for number in numbers}
    return {
        number: folder
        for number, folder in folders.items()
        if os.path.exists(os.path.join(folder, FORMAT_NAME))
    }


def _options_of(number: int, options: NsqdOptions) -> NsqdOptions:
    return replace(
        options,
        log_prefix=_prefix(options.log_prefix, number),
        node_id=(options.node_id + number) % NODE_IDS,
        tcp_address=_address(options.tcp_address, number),
        http_address=_address(options.http_address, number),
        https_address=_address(options.https_address, number),
        broadcast_tcp_port=_port(options.broadcast_tcp_port, number),
        broadcast_http_port=_port(options.broadcast_http_port, number),
        data_path=os.path.join(options.data_path, shard_name(number))
        if number
        else options.data_path,
    )


def _retiring(options: NsqdOptions) -> NsqdOptions:
    """It may take as long as it takes, but a SIGTERM need not wait for it: it goes on next time."""
    return replace(options, drain_timeout_ns=0, sigterm="stop")


def _prefix(prefix: str, number: int) -> str:
    """`[nsqd] ` becomes `[nsqd/1] `, and `nsqd/1` is the component in JSON."""
    head, bracket, tail = prefix.rpartition("]")
    return f"{head}/{number}]{tail}" if bracket else f"{prefix}[{number}] "


def _address(address: str, number: int) -> str:
    """Of a unix socket, the path gets an end of its own."""
    if not address or not number:
        return address
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return f"{address}.{number}"
    return f"{host}:{_port(int(port), number)}" if has_port(address) else address


def _port(port: int, number: int) -> int:
    """0, which stands for any that is free, stays."""
    moved = port + PORT_STEP * number if port else 0
    if moved > PORT_MAX:
        raise ConfigError(f"there is no port {moved} for shard {number}")
    return moved
