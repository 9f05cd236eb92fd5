"""Fixtures: a real browser, and pages of a small cluster."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from tests.nsqadmin.conftest import Cluster, cluster, topic

__all__ = ["Cluster", "browser", "cluster", "page", "phone", "topic", "watched"]

BROWSER_PATH = shutil.which("chromium")

# Refreshes may take long on a busy machine.
expect.set_options(timeout=60_000)

# Console messages while a test is offline, or leaves a page during a refresh.
OFFLINE_SIGNS = (
    "ERR_INTERNET_DISCONNECTED",
    "htmx:afterRequest",
    "htmx:sendError",
    "htmx:sendAbort",
)

# Console messages of pages with an error status.
FAILURE_SIGNS = ("status of 404", "status of 502", "htmx:responseError", "Response Status Error")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Shared by all tests of a module."""
    if BROWSER_PATH is None:
        # `make test` installs it if it has the rights to.
        pytest.skip("chromium is not installed: run scripts/ensure-test-programs")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=BROWSER_PATH, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """A browser window with the topics page."""
    with watched(browser, cluster.nsqadmin.url) as window:
        yield window


@pytest.fixture
def phone(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """The same on a small screen with the dark theme."""
    with watched(browser, cluster.nsqadmin.url, width=360, scheme="dark") as window:
        yield window


@contextmanager
def watched(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
    may_fail: bool = False,
) -> Iterator[Page]:
    """A browser window with the topics page.

    The test fails if the browser reports a script error or a violation of the
    Content-Security-Policy.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, base_url=url
    )
    context.set_default_timeout(60_000)
    window = context.new_page()
    complaints: list[str] = []
    expected = (*OFFLINE_SIGNS, *(FAILURE_SIGNS if may_fail else ()))

    def on_console(message: ConsoleMessage) -> None:
        was_expected = any(sign in message.text for sign in expected)
        if message.type in ("error", "warning") and not was_expected:
            complaints.append(message.text)

    window.on("console", on_console)
    window.on("pageerror", lambda error: complaints.append(str(error)))
    window.goto("/")
    yield window
    context.close()
    assert [] == complaints
