"""Fixtures: a real browser, and nsqadmin's pages of a small cluster."""

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

# Console messages while the browser is offline.
OFFLINE_MESSAGES = ("ERR_INTERNET_DISCONNECTED", "htmx:afterRequest", "htmx:sendError")

# Console messages of pages with an error status.
ERROR_PAGE_MESSAGES = (
    "status of 404",
    "status of 502",
    "htmx:responseError",
    "Response Status Error",
)


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
    """A phone-sized window with the topics page in the dark theme."""
    with watched(browser, cluster.nsqadmin.url, width=360, scheme="dark") as window:
        yield window


@contextmanager
def watched(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
    expected_messages: tuple[str, ...] = (),
) -> Iterator[Page]:
    """A browser window with the topics page.

    The test fails if the browser reports a script error, a violation of the
    Content-Security-Policy, or a console message without one of `expected_messages` in it.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, base_url=url
    )
    context.set_default_timeout(60_000)
    window = context.new_page()
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        is_expected = any(expected in message.text for expected in expected_messages)
        if message.type in ("error", "warning") and not is_expected:
            problems.append(message.text)

    window.on("console", on_console)
    window.on("pageerror", lambda error: problems.append(str(error)))
    window.goto("/")
    yield window
    context.close()
    assert [] == problems
