"""Screenshots of every lab in a real JupyterLab: wide and narrow, light and dark, all of it.

    python -m tests.browser.gallery OUT [--lab 05 ...] [--width 768] [--theme Dark] [--solutions]

Each lab is run once with LLMLAB_FAST=1, then scrolled through. OUT/index.html shows the pages side
by side. For people to look at; no test, and no part of CI.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from tests.browser.conftest import ROOT, Notebook, browsing, chromium, serving

WIDTHS, THEMES = (1280, 768), ("Light", "Dark")
HEIGHT, OVERLAP = 1500, 40
SCROLLER = "document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer')"


def pages(notebook: Notebook, folder: Path, stem: str) -> list[Path]:
    """Scroll through the open notebook; one picture a screen, cut to the notebook's own panel."""
    page, taken = notebook.page, []
    box: dict[str, float] = page.locator(".jp-NotebookPanel").first.bounding_box()
    place = 0
    while True:
        page.evaluate(f"y => {{ {SCROLLER}.scrollTop = y; }}", place)
        page.wait_for_timeout(350)
        path = folder / f"{stem}_{len(taken):02d}.png"
        page.screenshot(path=str(path), clip=box)
        taken.append(path)
        seen, whole = page.evaluate(
            f"() => [{SCROLLER}.scrollTop + {SCROLLER}.clientHeight, {SCROLLER}.scrollHeight]"
        )
        if seen >= whole - 2:
            return taken
        place = seen - OVERLAP


DRAWN = """() => [...document.querySelectorAll('.js-plotly-plot')]
  .every(g => (g._fullData || []).length > 0)"""


def wait_drawn(notebook: Notebook, seconds: float = 20) -> bool:
    """True when every figure has its traces; a busy machine draws them late."""
    from playwright.sync_api import TimeoutError as TooLong

    try:
        notebook.page.wait_for_function(DRAWN, timeout=seconds * 1000)
    except TooLong:
        return False
    return True


def too_wide(notebook: Notebook) -> list[str]:
    """Outputs that stick out of the notebook sideways, by cell and by what they hold."""
    return list(
        notebook.page.evaluate(
            """() => [...document.querySelectorAll('.jp-Cell')].flatMap((cell, i) =>
              [...cell.querySelectorAll('.jp-OutputArea-output, .jp-RenderedHTMLCommon')]
                .filter(e => e.scrollWidth > e.clientWidth + 2 && !e.querySelector('pre'))
                .map(e => `cell ${i}: ${e.innerText.slice(0, 50)}`)
                .concat([...cell.querySelectorAll('.js-plotly-plot')]
                  .filter(g => g._fullLayout.width > g.parentElement.clientWidth + 2)
                  .map(g => `cell ${i}: figure ${g._fullLayout.title.text}`)))"""
        )
    )


def take(notebook: Notebook, url: str, name: str, out: Path, asked: Any) -> list[Path]:
    """All pictures of one lab."""
    notebook.page.set_viewport_size({"width": asked.width[0], "height": HEIGHT})
    notebook.open(url, name)
    notebook.run_all(timeout=300)
    folder = out / Path(name).stem
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    if not wait_drawn(notebook):
        print(f"{name}: a figure stayed empty")
    for width in asked.width:
        notebook.page.set_viewport_size({"width": width, "height": HEIGHT})
        for theme in asked.theme:
            notebook.theme(f"JupyterLab {theme}")
            taken += pages(notebook, folder, f"{width}_{theme.lower()}")
        for line in too_wide(notebook):
            print(f"{name} at {width} px, wider than its box: {line}")
    for line in notebook.noise() + notebook.outside:
        print(f"{name}: {line}")
    notebook.errors.clear()
    return taken


def index(out: Path) -> Path:
    """One page with every picture below OUT."""
    parts = []
    for folder in sorted(p for p in out.iterdir() if p.is_dir()):
        shots = "".join(
            f'<a href="{p.relative_to(out)}"><img loading="lazy" alt="{escape(p.stem)}" '
            f'src="{p.relative_to(out)}" height="420"></a>'
            for p in sorted(folder.glob("*.png"))
        )
        parts.append(f"<h2>{escape(folder.name)}</h2><div>{shots}</div>")
    page = out / "index.html"
    page.write_text(f"<!doctype html><title>Gallery</title>{''.join(parts)}", encoding="utf-8")
    return page


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gallery", description="Screenshots of every lab.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--lab", nargs="*", help="numbers, as 05; default: all")
    parser.add_argument("--width", nargs="*", type=int, default=list(WIDTHS))
    parser.add_argument("--theme", nargs="*", default=list(THEMES), choices=THEMES)
    parser.add_argument("--solutions", action="store_true", help="the solutions instead")
    asked = parser.parse_args(argv)
    if chromium() is None:
        print("no Chromium on this machine: install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as base, serving(Path(base)) as url:
        work = Path(base) / "work"
        if asked.solutions:
            for path in (ROOT / "solutions").glob("[0-9]*.ipynb"):
                shutil.copyfile(path, work / path.name)
        for path in sorted(work.glob("[0-9]*.ipynb")):
            if asked.lab and path.stem.split("_")[0] not in asked.lab:
                continue
            with browsing() as notebook:
                taken = take(notebook, url, path.name, asked.out, asked)
            print(f"{path.stem}: {len(taken)} pictures", flush=True)
    print(index(asked.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
