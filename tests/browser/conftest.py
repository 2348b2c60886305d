"""A real JupyterLab on loopback and a headless Chromium that may talk to nothing else."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHOTS = Path(__file__).parent / "shots"
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "llmlab-browser-test"
KNOWN_NOISE = ("favicon", "Permissions policy", "sourceMappingURL")


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a JupyterLab with its own settings, whose root is a student's fresh work folder."""
    if chromium() is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium found, and CI is set: the browser tests must run")
        pytest.skip("no Chromium on this machine: install chromium to run the browser tests")
    with serving(tmp_path_factory.mktemp("jupyter")) as url:
        yield url


@contextmanager
def serving(base: Path) -> Iterator[str]:
    """A JupyterLab whose settings, progress and work folder all lie below `base`."""
    work = base / "work"
    subprocess.run(
        [sys.executable, "-m", "llmlab.cli.main", "labs", "--work", str(work)], check=True
    )
    settings = base / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    # Windowing off: every cell's output is in the page, not only those in view.
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
    from llmlab.cli.labs import JUPYTER, jupyter_environment

    environment = {
        **jupyter_environment(),
        "JUPYTER_CONFIG_DIR": str(base / "config"),
        "JUPYTER_DATA_DIR": str(base / "data"),
        "JUPYTER_RUNTIME_DIR": str(base / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(base / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(base / "workspaces"),
        "LLMLAB_DATA_DIR": str(base / "progress"),
        "LLMLAB_FAST": "1",
    }
    environment.pop("PYTEST_CURRENT_TEST", None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (base / "jupyter.log").open("wb")
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            *JUPYTER,
            "--no-browser",
            "--allow-root",
            f"--ServerApp.port={port}",
            f"--ServerApp.root_dir={work}",
            f"--IdentityProvider.token={TOKEN}",
            "--LabApp.expose_app_in_browser=True",
        ],
        env=environment,
        stdout=log,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_up(url, server, base / "jupyter.log")
        yield url
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def _wait_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/api?token={TOKEN}", timeout=2).read()
            return
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.2)
    pytest.fail("JupyterLab did not start:\n" + log.read_text()[-2000:])


@dataclass
class Notebook:
    """One notebook open in JupyterLab; reads come from its model, not from the page's HTML."""

    page: Any
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def open(self, url: str, name: str) -> None:
        self.page.goto(f"{url}/lab/tree/{name}?token={TOKEN}&reset")
        # Ready means all three: waiting for the kernel's dot alone opens a kernel dialog.
        self.page.wait_for_function(
            """() => { const p = window.jupyterapp?.shell?.currentWidget;
              return !!(p?.context?.isReady && p.sessionContext?.isReady
                && p.sessionContext.session?.kernel?.status === 'idle'); }""",
            timeout=90_000,
        )

    def run_all(self, timeout: float = 150) -> None:
        self.page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            cells = self.cells()
            code = [c for c in cells if c["cell_type"] == "code" and "".join(c["source"]).strip()]
            if all(c["execution_count"] for c in code) and not self.busy():
                return
            failed = [o for c in code for o in c["outputs"] if o["output_type"] == "error"]
            if failed:
                pytest.fail(f"a cell failed: {failed[0]['ename']}: {failed[0]['evalue']}")
            time.sleep(0.3)
        pytest.fail(f"run all did not end in {timeout} s")

    def busy(self) -> bool:
        return bool(
            self.page.evaluate(
                "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
                " !== 'idle'"
            )
        )

    def cells(self) -> list[dict[str, Any]]:
        return list(
            self.page.evaluate("window.jupyterapp.shell.currentWidget.context.model.toJSON().cells")
        )

    def noise(self) -> list[str]:
        """Console errors, but for those of JupyterLab itself that harm nothing."""
        return [e for e in self.errors if not any(known in e for known in KNOWN_NOISE)]

    def shot(self, name: str, selector: str | None = None) -> Path:
        SHOTS.mkdir(exist_ok=True)
        path = SHOTS / f"{name}.png"
        target = self.page.locator(selector).first if selector else self.page
        if selector:
            target.scroll_into_view_if_needed()
        target.screenshot(path=str(path))
        return path

    def wait_status(self, panel: str, said: str, timeout: int = 40_000) -> None:
        """Wait until a status line in the panel (a CSS selector) holds these words."""
        self.page.wait_for_function(
            "([p, s]) => [...document.querySelectorAll(p + ' [role=status]')]"
            ".some(e => e.innerText.includes(s))",
            arg=[panel, said],
            timeout=timeout,
        )

    def wait_drawn(self, panel: str, title: str = "") -> None:
        """Wait until each figure of a panel is drawn, and one is headed by `title`."""
        self.page.wait_for_function(
            """([p, t]) => { const plots = [...document.querySelectorAll(p + ' .js-plotly-plot')];
              return plots.length && plots.every(g => g._fullData?.length)
                && plots.some(g => (g._fullLayout.title.text ?? '').includes(t)); }""",
            arg=[panel, title],
            timeout=30_000,
        )

    def turn(self, knob: str, key: str = "ArrowRight", times: int = 1) -> None:
        """Move a knob's slider by keyboard: Tab from the box before it, then the key."""
        box = self.page.locator(f".llmlab-{knob}-box input").first
        box.scroll_into_view_if_needed()
        box.focus()
        self.page.keyboard.press("Tab")
        assert self.page.evaluate("document.activeElement.className").startswith("noUi-handle")
        for _ in range(times):
            self.page.keyboard.press(key)

    def press(self, name: str) -> None:
        """A button by keyboard."""
        button = self.page.locator(f"button.llmlab-{name}").first
        button.scroll_into_view_if_needed()
        button.focus()
        self.page.keyboard.press("Enter")

    def solve_worksheets(self) -> list[str]:
        """Answer the first item of every worksheet rightly, by keyboard alone; the items' ids."""
        from llmlab.check.solution import solution
        from llmlab.check.student import CURRICULUM

        firsts = self.page.evaluate(
            """() => [...document.querySelectorAll('.llmlab-worksheet')].map(sheet =>
              [...sheet.querySelector('[class*=llmlab-answer-]').classList]
                .find(c => c.startsWith('llmlab-answer-')).slice('llmlab-answer-'.length))"""
        )
        items = [name.replace("-", ".", 1) for name in firsts]
        for name, item in zip(firsts, items, strict=True):
            box = self.page.locator(f".llmlab-worksheet .llmlab-answer-{name} input").first
            box.scroll_into_view_if_needed()
            box.fill("")
            box.focus()
            self.page.keyboard.type(str(solution(item, CURRICULUM)))
            self.page.keyboard.press("Tab")
            self.page.keyboard.press("Enter")  # the focus is on Check now
            self.page.wait_for_function(
                "n => document.querySelector('.llmlab-result-' + n).innerText.includes(' correct')",
                arg=name,
                timeout=20_000,
            )
        return items

    def say_how_sure(self) -> int:
        """Press "getting there" in every quiz, by keyboard; how many quizzes there are."""
        quizzes = self.page.locator(".llmlab-quiz")
        quizzes.first.wait_for(timeout=30_000)
        for number in range(quizzes.count()):
            sure = quizzes.nth(number).get_by_role("button", name="getting there")
            sure.scroll_into_view_if_needed()
            sure.focus()
            self.page.keyboard.press("Enter")
            quizzes.nth(number).get_by_text("✓ getting there").wait_for(timeout=15_000)
        return quizzes.count()

    def looks(self, name: str, selector: str) -> None:
        """The same element at both widths in both themes."""
        for theme in ("Light", "Dark"):
            self.theme(f"JupyterLab {theme}")
            for width in (1280, 768):
                self.page.set_viewport_size({"width": width, "height": 1000})
                self.page.wait_for_timeout(300)  # figures fit themselves to the new width
                self.shot(f"{name}_{theme.lower()}_{width}", selector)

    def theme(self, name: str) -> None:
        self.page.evaluate(
            "n => window.jupyterapp.commands.execute('apputils:change-theme', {theme: n})", name
        )
        self.page.wait_for_function("n => document.body.dataset.jpThemeName === n", arg=name)
        self.page.wait_for_timeout(500)  # its colours fade in


@pytest.fixture
def notebook(jupyter: str) -> Iterator[Notebook]:
    """A page whose every request outside 127.0.0.1 is stopped and written down."""
    with browsing() as opened:
        yield opened


@contextmanager
def browsing() -> Iterator[Notebook]:
    """The same without pytest."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=ARGS)
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        page = context.new_page()
        opened = Notebook(page)

        def guard(route: Any) -> None:
            host = route.request.url.split("/")[2].split(":")[0]
            if route.request.url.startswith(("data:", "blob:")) or host == "127.0.0.1":
                route.continue_()
            else:
                opened.outside.append(route.request.url)
                route.abort()

        page.route("**/*", guard)
        page.on(
            "console",
            lambda m: opened.errors.append(m.text) if m.type == "error" else None,
        )
        page.on("pageerror", lambda e: opened.errors.append(str(e)))
        yield opened
        browser.close()
