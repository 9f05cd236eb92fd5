"""The nsqds that a job reads from and publishes to, as the command line names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.common import names
from penstock.common.errors import ConfigError, HttpRequestError, NotConnectedError
from pyspark_nsq.access import Access, base_url
from pyspark_nsq.http_calls import HttpCalls
from pyspark_nsq.nodes import Nodes, Survey, Topics

__all__ = ["Brokers"]

# Of those that there are, to somebody who has asked for one that is not.
TOPICS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Brokers:
    """HTTP addresses of nsqds, of nsqlookupds that know some, or of both."""

    nsqds: tuple[str, ...] = ()
    lookupds: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def options(self) -> dict[str, str]:
        """For Spark's `format("nsq")`."""
        given = {
            "nsqd": ",".join(self.nsqds),
            "lookupd": ",".join(self.lookupds),
            "httpToken": self.token,
            "tlsRootCaFile": self.tls_root_ca_file,
            "tlsCert": self.tls_cert,
            "tlsKey": self.tls_key,
        }
        return {name: value for name, value in given.items() if value}

    def survey(self, topics: Sequence[str]) -> Survey:
        """What the nodes have of these topics, each of which one must have.

        Raises NotConnectedError if no node answers, and ConfigError if there is no such topic.
        """
        for topic in filter(names.is_ephemeral, topics):
            raise ConfigError(f"{topic} is ephemeral, and has no history")
        survey = self.nodes().survey(Topics(tuple(topics)))
        known = {key.topic for key in survey.logs}
        for topic in topics:
            if topic not in known:
                silent = "".join(f"; {failure}" for failure in survey.failures)
                raise ConfigError(f"there is no topic {topic}{silent or self._known_topics()}")
        return survey

    def _known_topics(self) -> str:
        topics = self.nodes().topics()
        more = ", ..." if len(topics) > TOPICS_SHOWN else ""
        return (
            f"; there are {', '.join(topics[:TOPICS_SHOWN])}{more}" if topics else ", nor any other"
        )

    def check_reachable(self) -> None:
        """Raises NotConnectedError unless one of the nodes answers."""
        calls, failures = self.calls(), []
        for base in self.nodes().bases():
            try:
                calls.get(base, "/ping")
                return
            except HttpRequestError as failure:
                failures.append(str(failure))
        raise NotConnectedError("; ".join(failures) or "no lookupd knows of an nsqd")

    def nodes(self) -> Nodes:
        """Raises ConfigError if an address is none."""
        return Nodes(self._access())

    def calls(self) -> HttpCalls:
        """To ask the nodes for anything else. Raises ConfigError."""
        return HttpCalls(self._access())

    def _access(self) -> Access:
        return Access(
            nsqds=tuple(map(base_url, self.nsqds)),
            lookupds=tuple(map(base_url, self.lookupds)),
            http_token=self.token,
            tls_root_ca_file=self.tls_root_ca_file,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )
