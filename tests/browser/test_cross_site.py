"""A page of another site, in a real browser, cannot use the visitor's access to nsqd."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser

from penstock.testing.nsqd import run_nsqd

SEND = """
async (target) => {
  try { await fetch(target, {method: "POST", mode: "no-cors", body: "x"}); return "sent"; }
  catch (error) { return String(error); }
}
"""


@contextmanager
def other_site() -> Iterator[str]:
    """The URL of an empty page with its own origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_page_publishes_only_if_its_origin_is_allowed(browser: Browser, is_allowed: bool) -> None:
    with other_site() as url:
        flags = [f"--http-allowed-origin={url[:-1]}"] if is_allowed else []
        with run_nsqd(*flags) as nsqd:
            page = browser.new_page()
            page.goto(url)
            outcome = page.evaluate(SEND, f"http://{nsqd.http_address}/pub?topic=t")
            page.close()
            topics = nsqd.http("GET", "/stats?format=json").json()["topics"]
            answers = nsqd.http("GET", "/metrics").body

    assert "sent" == outcome
    assert is_allowed == bool(topics)
    assert is_allowed == (b'nsqd_http_requests_total{code="403"}' not in answers)
