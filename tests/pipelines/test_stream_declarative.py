"""The declarative pipeline of examples/ runs as its README describes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.tables import history, publish

from penstock.testing.nsqd import NsqdProcess

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative_pipeline"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_large_orders_are_published(nsqd: NsqdProcess, tmp_path: Path) -> None:
    orders = [{"order_id": f"o{n}", "customer": "ada", "amount": n * 50.0} for n in range(1, 5)]
    publish(nsqd, "orders", map(json.dumps, orders))
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/", f"{tmp_path.as_uri()}/"))

    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "run"],
        cwd=project,
        env=os.environ
        | {
            "PENSTOCK_NSQD_HTTP_ADDRESS": nsqd.http_address,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=200,
        check=False,
    )

    assert 0 == done.returncode, done.stdout.decode()
    published = [json.loads(message["body"]) for message in history(nsqd, "orders.large")]
    assert orders[1:] == sorted(published, key=lambda order: str(order["order_id"]))
    assert list((project / "spark-warehouse" / "revenue").glob("*.parquet"))
