"""The nsqds that a job reads from and publishes to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.admin_api.blocking_api import BlockingApi
from penstock.common import names
from penstock.common.errors import ConfigError, HttpRequestError, NotConnectedError
from pyspark_nsq.nodes import ClusterSnapshot, Nodes
from pyspark_nsq.options import Access, Topics, base_url

__all__ = ["Brokers"]

# Maximum topics listed in the error for an unknown topic.
TOPICS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Brokers:
    """HTTP addresses of nsqds or nsqlookupds, and credentials."""

    nsqds: tuple[str, ...] = ()
    lookupds: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def options(self) -> dict[str, str]:
        """Options for Spark's `format("nsq")`."""
        given = {
            "nsqd": ",".join(self.nsqds),
            "lookupd": ",".join(self.lookupds),
            "httpToken": self.token,
            "tlsRootCaFile": self.tls_root_ca_file,
            "tlsCert": self.tls_cert,
            "tlsKey": self.tls_key,
        }
        return {name: value for name, value in given.items() if value}

    def snapshot(self, topics: Sequence[str]) -> ClusterSnapshot:
        """Locate the logs of these topics on all nodes.

        Raises NotConnectedError if no node answers, and ConfigError if a topic does not exist.
        """
        for topic in filter(names.is_ephemeral, topics):
            raise ConfigError(f"{topic} is ephemeral and has no history")
        snapshot = self.nodes().snapshot(Topics(tuple(topics)))
        known = {key.topic for key in snapshot.logs}
        for topic in topics:
            if topic not in known:
                silent = "".join(f"; {failure}" for failure in snapshot.failures)
                raise ConfigError(f"topic {topic} does not exist{silent or self._known_topics()}")
        return snapshot

    def _known_topics(self) -> str:
        topics = self.nodes().topics()
        more = ", ..." if len(topics) > TOPICS_SHOWN else ""
        return f"; topics: {', '.join(topics[:TOPICS_SHOWN]) or 'none'}{more}"

    def check_reachable(self) -> None:
        """Raises NotConnectedError if no node answers."""
        calls, failures = self.calls(), []
        for base in self.nodes().bases():
            try:
                calls.get(base, "/ping")
                return
            except HttpRequestError as failure:
                failures.append(str(failure))
        raise NotConnectedError("; ".join(failures) or "nsqlookupd knows no nsqd")

    def nodes(self) -> Nodes:
        """Raises ConfigError if an address is invalid."""
        return Nodes(self._access())

    def calls(self) -> BlockingApi:
        """Client for other requests. Raises ConfigError if an address is invalid."""
        return self._access().http_api()

    def _access(self) -> Access:
        return Access(
            nsqds=tuple(map(base_url, self.nsqds)),
            lookupds=tuple(map(base_url, self.lookupds)),
            http_token=self.token,
            tls_root_ca_file=self.tls_root_ca_file,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )
