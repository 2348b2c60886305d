"""Progress in a notebook: a bar where widgets work, one line of text where they do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmlab.viz.live import Progress, Throttle
from llmlab.viz.panels.controls import status_html
from llmlab.viz.widgets import is_widget, toolkit


@contextmanager
def loading_bar(what: str, doing: str = "Loading") -> Iterator[Progress]:
    """`with loading_bar("model") as progress:` shows progress(done, total, step) calls."""
    from IPython.display import display

    w = toolkit()
    end = "ready" if doing == "Loading" else "done"
    bar = w.IntProgress(0, min=0, max=100)
    bar.layout.width = "260px"
    bar.add_class("llmlab-progress")
    label = w.HTML(status_html("busy", f"{doing} {what}"))
    throttle = Throttle()

    def progress(done: int, total: int, step: str) -> None:
        if total and (throttle.ready() or done >= total):
            bar.value = round(100 * done / total)
            label.value = status_html("busy", f"{doing} {what}: {step}, {bar.value} %")

    if is_widget(bar):
        display(w.HBox([bar, label]))  # type: ignore[no-untyped-call]
    else:
        print(f"{doing} {what} ...")
    try:
        yield progress
    except BaseException:
        label.value = status_html("error", f"{what}: not {end}, see the error below")
        raise
    bar.value = 100
    label.value = status_html("ok", f"{what}: {end}")
