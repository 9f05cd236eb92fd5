"""A real browser, and a cluster to look at with it."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from tests.nsqadmin.conftest import Cluster, cluster, topic

__all__ = ["Cluster", "browser", "cluster", "page", "phone", "topic"]

BROWSER_PATH = shutil.which("chromium")

# What a page shows by itself may take a while on a busy machine.
expect.set_options(timeout=20_000)

# What is said when a test takes the network away.
OFFLINE_SIGNS = ("ERR_INTERNET_DISCONNECTED", "htmx:afterRequest", "htmx:sendError")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a module."""
    if BROWSER_PATH is None:
        # `make test` installs it, unless it may not.
        pytest.skip("there is no chromium: run scripts/ensure-test-programs")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=BROWSER_PATH, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """A window on the front page. Whatever the browser finds fault with fails the test: an error
    of a script, and anything that the Content-Security-Policy forbids."""
    yield from _watched(browser, cluster, width=1280, height=900)


@pytest.fixture
def phone(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    """The same, on a small screen in the dark."""
    yield from _watched(browser, cluster, width=360, height=740, color_scheme="dark")


def _watched(
    browser: Browser, cluster: Cluster, *, width: int, height: int, color_scheme: str = "light"
) -> Iterator[Page]:
    scheme = "dark" if color_scheme == "dark" else "light"
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        base_url=cluster.nsqadmin.url,
    )
    context.set_default_timeout(10_000)
    window = context.new_page()
    complaints: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        was_offline = any(sign in message.text for sign in OFFLINE_SIGNS)
        if message.type in ("error", "warning") and not was_offline:
            complaints.append(message.text)

    window.on("console", on_console)
    window.on("pageerror", lambda error: complaints.append(str(error)))
    window.goto("/")
    yield window
    context.close()
    assert [] == complaints
