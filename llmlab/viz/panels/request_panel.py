"""Type a prompt, watch the answer stream on a timeline, read its four numbers."""

from __future__ import annotations

import threading
from html import escape
from typing import TYPE_CHECKING, Any

from llmlab.sched.request import SamplingParams
from llmlab.viz import cards
from llmlab.viz.figures.request_timeline import (
    TIMELINE_HEAD,
    request_timeline,
    timeline_rows,
    update_timeline,
)
from llmlab.viz.live import LiveRun, painting
from llmlab.viz.palette import INK
from llmlab.viz.panels.controls import LABEL, Knob, button, status_html
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown, boxed, live_figure, table_html, table_text
from llmlab.viz.widgets import toolkit

if TYPE_CHECKING:
    from llmlab.engine import Engine
    from llmlab.trace import Trace

ANSWER = (
    f"color:{INK};white-space:pre-wrap;line-height:1.5;min-height:3em;padding:10px 14px;"
    "border-left:3px solid var(--jp-border-color1,#8884);overflow-wrap:anywhere"
)


def numbers_of(trace: Trace, request_id: str) -> list[cards.Number]:
    """The card of one request that had the server to itself: its own rate is the server's."""
    from llmlab.measure.per_request import request_metrics

    metrics = request_metrics(trace.requests[request_id])
    return cards.four_numbers(metrics, metrics.e2e_rate)


def show_request(trace: Trace, request_id: str | None = None) -> Shown:
    """Timeline and four numbers of one finished request (default: the last) of a trace."""
    if not trace.requests:
        raise ValueError("the trace holds no request yet: run one first")
    rid = request_id or list(trace.requests)[-1]
    if rid not in trace.requests:
        raise ValueError(f"no request {rid!r} in the trace; it holds {list(trace.requests)[-5:]}")
    numbers = numbers_of(trace, rid)
    figure = live_figure(request_timeline(trace, rid))
    w = toolkit()
    widget = w.VBox([*boxed(figure), w.HTML(cards.card_html(numbers))])
    tables = (
        ("Where the time went", TIMELINE_HEAD, timeline_rows(trace, rid)),
        ("The four numbers", cards.CARD_HEAD, cards.card_rows(numbers)),
    )
    return Shown(
        widget,
        lambda: "".join(table_html(*table) for table in tables),
        lambda: "\n\n".join(table_text(*table) for table in tables),
        figure,
    )


class RequestPanel(Panel):
    """The live panel. `run(prompt, max_tokens)` does the same without a widget, and waits."""

    def __init__(self, engine: Engine, prompt: str, max_tokens: int = 48) -> None:
        w = toolkit()

        self.engine = engine
        self.live = LiveRun()
        self.request_id: str | None = None
        self._text = ""
        self.prompt = w.Textarea(prompt, description="Your prompt", rows=3, style=LABEL)
        self.prompt.layout.width = "min(calc(100% - 8px), 700px)"
        self.prompt.add_class("llmlab-prompt")
        self.length = Knob("Most output tokens", max_tokens, 1, 256, 1, "length")
        self.go = button("Run", "run", "primary")
        self.halt = button("Stop", "stop")
        self.halt.disabled = True
        self.status = w.HTML(status_html("info", "Ready. Run sends the prompt to the engine."))
        self.answer = w.HTML(f'<div style="{ANSWER}"></div>')
        self.card = w.HTML(cards.card_html(cards.four_numbers(None)))
        self.figure: Any | None = None
        self.slot = w.VBox([])
        self._on_click(self.start, self.go)
        self._on_click(self.live.cancel, self.halt)
        self.widget = w.VBox(
            [
                self.prompt,
                self.length.widget,
                w.HBox([self.go, self.halt]),
                self.status,
                self.answer,
                self.slot,
                self.card,
            ]
        )
        self.widget.add_class("llmlab-request-panel")

    # -- running ---------------------------------------------------------------------------

    def start(self) -> None:
        """Run in the background; a second start while one is running is refused."""
        if not self.prompt.value.strip():
            self._say("error", "The prompt is empty: type a question first.")
            return
        prompt, length = self.prompt.value, self.length.value
        if not self.live.start(lambda stop: self._job(prompt, length, stop)):
            self._say("busy", "Still running: press Stop first.")

    def run(self, prompt: str, max_tokens: int) -> str:
        """Run in this thread and return the text."""
        self._job(prompt, max_tokens, threading.Event())
        return self._text

    def _job(self, prompt: str, max_tokens: int, stop: threading.Event) -> None:
        self.go.disabled, self.halt.disabled = True, False
        self._say("busy", "Running on this machine, for real.")
        try:
            with painting(self._draw, stop):
                reason = self._stream(prompt, max_tokens, stop)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._draw()
            self._close(reason)
        finally:
            self.go.disabled, self.halt.disabled = False, True

    def _stream(self, prompt: str, max_tokens: int, stop: threading.Event) -> str | None:
        """Drive the engine until the request ends; None if it was stopped."""
        engine = self.engine
        sent = engine.clock()  # the clock starts before the text is made into token ids
        ids = engine.tokenizer.chat([{"role": "user", "content": prompt}])
        self.request_id, self._text, reason = f"panel-{sent}", "", None
        params = SamplingParams(max_tokens=max_tokens)
        # A stream, not steps: a cell or another panel may be using the same engine meanwhile.
        for out in engine.stream(ids, params, stop=stop, request_id=self.request_id, t_send=sent):
            self._text += out.text
            reason = out.finish_reason
        return reason

    def _close(self, reason: str | None) -> None:
        used = self.engine.scheduler.num_blocks_used
        if reason is None:
            self._say("stop", f"Stopped. KV blocks still in use: {used}.")
        else:
            why = (
                "the model ended its answer" if reason == "stop" else "it reached the length limit"
            )
            self._say("ok", f"Done: {why}. KV blocks still in use: {used}.")

    # -- drawing ---------------------------------------------------------------------------

    def _draw(self) -> None:
        self.answer.value = f'<div style="{ANSWER}">{escape(self._text)}</div>'
        trace = self.engine.trace
        if self.request_id not in trace.requests:
            return
        self.card.value = cards.card_html(numbers_of(trace, self.request_id))
        if self.figure is None:
            self.figure = live_figure(request_timeline(trace, self.request_id))
            self.slot.children = boxed(self.figure)
        with self.figure.batch_update():
            update_timeline(self.figure, trace, self.request_id)

    # -- showing ---------------------------------------------------------------------------

    def shown(self) -> Shown:
        html = "<p>A live panel: run this notebook to use it.</p>"
        return Shown(self.widget, lambda: html, lambda: "RequestPanel")
