"""Login in a real browser."""

from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.nsqadmin.conftest import Cluster

from penstock.testing.nsqadmin import run_nsqadmin

TOKEN = "a-token-of-some-length"


def test_the_login_redirects_to_the_requested_page(
    browser: Browser, cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    flags = (
        f"--lookupd-http-address={cluster.nsqlookupd.http_address}",
        f"--auth-token-file={tmp_path / 'tokens'}",
        "--base-path=/nsq",
    )
    with run_nsqadmin(*flags) as nsqadmin:
        context = browser.new_context(base_url=nsqadmin.url)
        page = context.new_page()

        page.goto("/nsq/nodes?x=1")
        page.get_by_label("Token").fill("wrong-token-of-some-length")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("Unknown token.")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/nsq/nodes?x=1")
        expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")

        (cookie,) = context.cookies()
        assert ("/nsq/", True, "Strict") == (
            cookie["path"],
            cookie["httpOnly"],
            cookie["sameSite"],
        )
        assert TOKEN not in cookie["value"]

        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/nsq/login")
        page.goto("/nsq/nodes")
        page.wait_for_url("**/nsq/login?next=/nsq/nodes")
        context.close()
