"""The examples run as described. The shop has its own tests; so have Celery and the declarative
pipeline, and the web app with its worker is started by tests/docs, as examples/README.md says.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from penstock.testing.nsqd import run_nsqd

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "notebook" / "history.ipynb"

pytestmark = pytest.mark.spark


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(300)  # Spark may have to start
def test_the_spark_job_aggregates_orders(spark: SparkSession, tmp_path: Path) -> None:
    orders = [("ann", 30), ("bob", 7), ("ann", 12.5)]
    bodies = [json.dumps({"id": 1, "customer": who, "amount": much}) for who, much in orders]
    with run_nsqd("--retention-time=1h") as nsqd:
        nsqd.publish("orders", *(body.encode() for body in bodies), b"no JSON")
        loaded(EXAMPLES / "spark_job.py").main(str(tmp_path / "revenue"), nsqd.http_address)
        published = nsqd.http("GET", "/topic/messages?topic=revenue").body.decode().splitlines()

    rows = spark.read.parquet(str(tmp_path / "revenue")).collect()
    assert [("ann", 2, 42.5), ("bob", 1, 7.0)] == sorted(map(tuple, rows))
    totals = [json.loads(json.loads(line)["body"]) for line in published]
    assert {"ann": 42.5, "bob": 7.0} == {total["customer"]: total["amount"] for total in totals}


@pytest.mark.slow
@pytest.mark.timeout(300)  # its kernel starts another Spark
def test_the_notebook_reproduces_its_stored_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    stored = printed(notebook)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with run_nsqd("--retention-time=1h") as nsqd:
        addresses = {"NSQD": nsqd.tcp_address, "NSQD_HTTP": nsqd.http_address}
        client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": tmp_path}})
        client.execute(env={**os.environ, **addresses})

    assert any("Spark and pandas agree: True" in text for text in stored)
    assert stored == printed(notebook)
    assert 1 == len(pictures(notebook))


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """Text output of the cells, without memory addresses."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    streams = [
        each.text for each in outputs if each.output_type == "stream" and each.name == "stdout"
    ]
    results = [each.data["text/plain"] for each in outputs if each.output_type == "execute_result"]
    return [*streams, *(text for text in results if "<" not in text)]


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [each.data["image/png"] for each in outputs if "image/png" in each.get("data", {})]
