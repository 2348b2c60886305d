"""plotly's live figure, made safe for a page that is late, busy or opened anew.

ImportError where anywidget is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from threading import RLock
from typing import Any

import plotly
import plotly.graph_objects as go
from traitlets import Unicode, observe


@contextmanager
def absent(module: str) -> Iterator[None]:
    """Importing the module fails meanwhile, as if it were not installed."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


# plotly looks for nbformat, whose schemas can check addresses in every alphabet; no notebook asks
# for it, and the grammar of these would cost a kernel's first figure a second.
with absent("rfc3987_syntax"):
    if not hasattr(go.FigureWidget, "add_traits"):  # plotly's stand-in where anywidget is missing
        raise ImportError("anywidget")

SCRIPT = Path(plotly.__file__).parent / "package_data" / "widgetbundle.js"
# plotly's own script, 5 MB of it, once a page, and not while anywidget waits: what is not there two
# seconds after it was asked for never hears of a change again.
LOADER = """
const load = (text) => (globalThis["llmlab plotly VERSION"] ??= import(
  URL.createObjectURL(new Blob([text], { type: "text/javascript" }))));
export default () => {
  let figure;
  return {
    initialize({ model }) {
      figure = load(model.get("_bundle")).then((plotly) => {
        const one = plotly.default();
        one.initialize({ model });
        return one;
      });
    },
    async render(place) { return (await figure).render(place); },
  };
};
"""


class LiveFigure(go.FigureWidget):  # type: ignore[misc]
    """A FigureWidget whose page never shows less than the figure holds.

    plotly opens its widget empty and sends what it holds, and every change, as messages after it.
    A page that has not loaded plotly.js yet does not look at them, one that is drawing its first
    picture loses them, and one that is opened anew never gets them: on a busy machine a figure
    stays empty or old. Here the widget's state always is the whole figure, changes wait for the
    first picture, and if there were any the page is then sent all that the figure holds.
    """

    _esm = LOADER.replace("VERSION", plotly.__version__)
    _bundle = Unicode(SCRIPT.read_text(encoding="utf-8")).tag(sync=True)
    _whole = _drawn = _behind = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._editing = RLock()
        super().__init__(*args, **kwargs)

    @contextmanager
    def batch_update(self) -> Iterator[None]:
        """plotly's, one at a time: a knob and the run behind it edit from two threads."""
        with self._editing, super().batch_update():
            yield

    def open(self) -> None:
        """Nothing as the figure is made, as plotly would have it: `send_whole` opens it."""
        if self._whole:
            super().open()

    def send_whole(self) -> None:
        """Open the widget with all that the figure holds now; later calls do nothing."""
        if self.comm is None:
            self._renew()
            self._whole, self._behind = True, False
            self.open()

    def _renew(self) -> None:
        self._widget_layout = deepcopy(self._layout_obj._props)
        self._widget_data = deepcopy(self._data)

    @observe("_js2py_traceDeltas")
    def _handler_js2py_traceDeltas(self, change: Any) -> None:
        """A page reports that it has drawn.

        It also lists where its picture differs from the state. plotly takes those values for
        defaults and drops the figure's own, which is wrong where the picture is the older one.
        """
        if change["new"]:
            first, self._drawn = not self._drawn, True
            if first and self._behind:
                layout = {k: v for k, v in self._layout_obj._props.items() if k != "template"}
                self._send_update_msg(as_restyle(self._data), dict(flat(layout)))
            self._js2py_traceDeltas = None

    def _tell(self, send: Callable[..., None], *edit: Any, **options: Any) -> None:
        if self._drawn:
            send(*edit, **options)
        else:
            self._behind = True
        self._renew()

    def _send_restyle_msg(self, *args: Any, **kwargs: Any) -> None:
        self._tell(super()._send_restyle_msg, *args, **kwargs)

    def _send_relayout_msg(self, layout_data: Any, *args: Any, **kwargs: Any) -> None:
        self._tell(super()._send_relayout_msg, _fluid(layout_data), *args, **kwargs)

    def _send_update_msg(
        self, restyle_data: Any, relayout_data: Any, *args: Any, **kwargs: Any
    ) -> None:
        relayout_data = _fluid(relayout_data)
        self._tell(super()._send_update_msg, restyle_data, relayout_data, *args, **kwargs)

    @property
    def model_id(self) -> str:
        self.send_whole()
        return str(super().model_id)

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        self.send_whole()
        return super()._repr_mimebundle_(*args, **kwargs)


def flat(props: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested properties as plotly's edits name them: {"marker": {"color": c}} is marker.color."""
    for name, value in props.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def as_restyle(traces: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Everything that the traces hold as one edit: a list of values, one a trace, a property."""
    each = [dict(flat(trace)) for trace in traces]
    names = {name: None for trace in each for name in trace if name not in ("type", "uid")}
    return {name: [deepcopy(trace.get(name)) for trace in each] for name in names}


def _fluid(layout: Any) -> Any:
    """plotly.js pins the width when a height is set alone: the figure would not shrink any more."""
    return {**layout, "autosize": True} if layout and "height" in layout else layout
