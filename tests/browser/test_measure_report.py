"""The report page in a real browser: every plot drawn, no error, nothing asked of any network."""

from __future__ import annotations

import os
import shutil

import pytest

from llmlab.measure.limits import Limits
from llmlab.measure.metrics import summarize
from llmlab.measure.report import write_html
from tests.measure.traces import record, trace

pytestmark = pytest.mark.browser
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]


def chromium():
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium found, and CI is set: the browser tests must run")
        pytest.skip("no Chromium on this machine: install chromium to run the browser tests")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_plot_is_drawn_and_the_page_asks_no_network(tmp_path, scheme):
    from playwright.sync_api import sync_playwright

    rows = [
        record(
            f"r{i}",
            [300 * i + 40 + 20 * j for j in range(5 + i % 4)],
            send=300 * i,
            end=300 * i + 400,
            class_name="chat" if i % 2 else "document",
        )
        for i in range(12)
    ]
    write_html(summarize(trace(*rows), limits=Limits(ttft_ms=60)), tmp_path / "page.html")
    errors, asked = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGS)
        page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 800})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("#plot-5 svg.main-svg")
        drawn = page.locator(".plot").evaluate_all(
            "plots => plots.map(p => p.querySelectorAll('.trace, .bars').length)"
        )
        wide = page.evaluate("document.documentElement.scrollWidth")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert errors == []
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
    assert len(drawn) == 6
    assert min(drawn) > 0
    assert wide <= 390  # nothing sticks out of a phone's screen
    assert background == ("rgb(250, 250, 248)" if scheme == "light" else "rgb(20, 23, 26)")
