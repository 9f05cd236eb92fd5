"""An nsqd that requires TLS and a token."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.net.tls.certificates import Authority
from tests.spark.tables import bodies, table

from penstock.testing.nsqd import NsqdProcess, run_nsqd


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def nsqd(authority: Authority, tmp_path: Path) -> Iterator[NsqdProcess]:
    identity, tokens = authority.issue("server"), tmp_path / "tokens"
    tokens.write_text("consume,read open-sesame\n")
    tokens.chmod(0o600)
    flags = (
        "--https-address=127.0.0.1:0",
        "--tls-required=true",
        f"--tls-cert={identity.cert}",
        f"--tls-key={identity.key}",
        f"--http-auth-token-file={tokens}",
        "--node-id=1",
    )
    with run_nsqd(*flags) as running:
        yield running


def test_read_and_write_over_tls_with_a_token(
    spark: SparkSession, nsqd: NsqdProcess, authority: Authority
) -> None:
    access = {"tlsRootCaFile": authority.root_ca, "httpToken": "open-sesame"}
    frame = spark.createDataFrame([("hidden",)], "body string")
    writer = frame.write.format("nsq").options(nsqd=nsqd.http_address, topic="orders", **access)

    writer.option("tls", "true").mode("append").save()

    assert ["hidden"] == bodies(table(spark, nsqd, topic="orders", **access))
    with pytest.raises(PySparkException, match=r"401 .*UNAUTHORIZED"):
        table(spark, nsqd, topic="orders", tlsRootCaFile=authority.root_ca).count()
    with pytest.raises(PySparkException, match="certificate verify failed"):
        table(spark, nsqd, topic="orders", httpToken="open-sesame").count()
