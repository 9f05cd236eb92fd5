"""TLS, compression and AUTH, with both kinds of client and a running nsqd."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.client.conftest import Run
from tests.net.tls.certificates import Authority
from tests.nsqd.auth_server import auth_server

from penstock.client import ClientConfig, Consumer, Producer, blocking
from penstock.common.errors import ClientError, ConfigError, NotConnectedError, RefusedError
from penstock.testing.nsqd import NsqdProcess, run_nsqd

BODIES = [b"%d" % number * 50 for number in range(500)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def nsqd(authority: Authority) -> Iterator[NsqdProcess]:
    server = authority.issue("server")
    flags = (f"--tls-cert={server.cert}", f"--tls-key={server.key}", "--https-address=127.0.0.1:0")
    with run_nsqd(*flags) as process:
        yield process


@pytest.fixture(scope="module")
def secure(authority: Authority) -> ClientConfig:
    return ClientConfig(tls_v1=True, tls_root_ca_file=authority.root_ca)


@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "TLS"])
@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
def test_messages_pass_through_every_transport(
    nsqd: NsqdProcess,
    topic: str,
    secure: ClientConfig,
    run: Run,
    *,
    compression: str,
    encrypted: bool,
) -> None:
    config = replace(secure, tls_v1=encrypted).with_options([compression] if compression else [])

    async def scenario() -> None:
        async with Producer(nsqd.tcp_address, config=config) as producer:
            await producer.publish_many(topic, BODIES)
        async with Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:
            for body in BODIES:
                message = await anext(consumer)
                assert body == message.body
                message.finish()

    run(scenario())
    with blocking.Producer(nsqd.tcp_address, config=config) as producer:
        producer.publish_many(topic, BODIES)
    with blocking.Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:
        for body in BODIES:
            message = next(consumer)
            assert body == message.body
            message.finish()
        client = nsqd.stats(topic, "c")["clients"][0]
        assert (encrypted, compression == "snappy", compression == "deflate") == (
            client["tls"],
            client["snappy"],
            client["deflate"],
        )


def failure_of(address: str, config: ClientConfig, run: Run) -> ClientError:
    """The error of a failed connection; both kinds of client raise the same."""

    async def scenario() -> None:
        await Producer(address, config=config).start()

    with pytest.raises(ClientError) as on_loop:
        run(scenario())
    with pytest.raises(ClientError) as blocked, blocking.Producer(address, config=config):
        pass
    assert str(on_loop.value) == str(blocked.value)
    return on_loop.value


def test_an_untrusted_certificate_is_refused(
    nsqd: NsqdProcess, secure: ClientConfig, tmp_path: Path, run_once: Run
) -> None:
    stranger = Authority(tmp_path, "stranger")
    config = replace(secure, tls_root_ca_file=stranger.root_ca)

    failure = failure_of(nsqd.tcp_address, config, run_once)

    assert isinstance(failure, NotConnectedError)
    assert "certificate" in str(failure)
    with blocking.Producer(nsqd.tcp_address, config=replace(config, tls_insecure_skip_verify=True)):
        pass


def test_tls_is_never_silently_skipped(secure: ClientConfig, run_once: Run) -> None:
    with run_nsqd() as without:
        failure = failure_of(without.tcp_address, secure, run_once)

    assert f"{without.tcp_address}: nsqd does not offer TLS, which the client requires" == str(
        failure
    )


def test_invalid_tls_files_are_reported_before_connecting() -> None:
    config = ClientConfig(tls_v1=True, tls_root_ca_file="missing.pem")

    with pytest.raises(ConfigError, match=r"missing\.pem: No such file"):
        blocking.Producer("127.0.0.1:1", config=config)


# AUTH ---------------------------------------------------------------------------------------------


def test_auth_allows_or_refuses_a_publish(topic: str, run: Run) -> None:
    allowed = {"topic": topic, "channels": [".*"], "permissions": ["publish", "subscribe"]}
    answer = {"ttl": 60, "identity": "me", "authorizations": [allowed]}
    config = ClientConfig(auth_secret="secret")

    async def scenario(address: str) -> None:
        async with Producer(address, config=config) as producer:
            await producer.publish(topic, b"x")
            with pytest.raises(RefusedError, match="E_UNAUTHORIZED AUTH failed for PUB on"):
                await producer.publish("other", b"x")
            await producer.publish(topic, b"y")

    with auth_server(answer) as auth, run_nsqd(f"--auth-http-address={auth.address}") as nsqd:
        run(scenario(nsqd.tcp_address))
        assert "secret=secret" in auth.asked[0].target
        with blocking.Consumer(topic, "c", nsqd=nsqd.tcp_address, config=config) as consumer:
            assert b"x" == next(consumer).body

        none = f"{nsqd.tcp_address}: nsqd requires AUTH, and no auth_secret is set"
        assert none == str(failure_of(nsqd.tcp_address, ClientConfig(), run))
        auth.answer = {"ttl": 60, "authorizations": []}
        failure = failure_of(nsqd.tcp_address, config, run)
        assert f"{nsqd.tcp_address}: E_UNAUTHORIZED AUTH no authorizations found" == str(failure)
        assert isinstance(failure, RefusedError)
