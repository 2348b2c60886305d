"""A sweep as a map: two axes of its grid, in each square the best cell over all other axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmlab.viz.palette import layout

MOST_SIDE = 40  # values of an axis that a map can show
# From pale to strong blue, readable under black and under white text where each stands.
SCALE = [[0.0, "#E8F1F8"], [0.5, "#6FAFD6"], [1.0, "#005A8F"]]


class SweepMap:
    """Collects lines of a results file and draws them; holds one value a square.

    axes: the grid's, name -> values. varying: names of those with several values. figure: what is
    shown; the best of a square is the smallest of a latency (`..._ms`), else the largest, of the
    cells that keep min_attainment of their limits (None: of all).
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        varying: Sequence[str],
        figure: str,
        measured: bool,
        min_attainment: float | None = None,
    ) -> None:
        by_size = sorted(varying, key=lambda name: -len(axes[name]))
        self.x_axis = by_size[0] if by_size else next(iter(axes))
        self.y_axis = by_size[1] if len(by_size) > 1 else None
        for name in (self.x_axis, self.y_axis):
            if name is not None and len(axes[name]) > MOST_SIDE:
                raise ValueError(
                    f"--html: {name} has {len(axes[name])} values; a map shows {MOST_SIDE} at most"
                )
        self.xs = [_said(v) for v in axes[self.x_axis]]
        self.ys = [""] if self.y_axis is None else [_said(v) for v in axes[self.y_axis]]
        self.same = [
            f"{name} {_said(values[0])}"
            for name, values in axes.items()
            if len(values) == 1 and values[0] is not None
        ]
        self.others = [name for name in varying if name not in (self.x_axis, self.y_axis)]
        self.figure, self.measured, self.least = figure, measured, min_attainment
        self.cells = self.failed = 0
        self._best: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Take one line of a results file."""
        self.cells += 1
        if not line["ok"]:
            self.failed += 1
            return
        value, share = line["figures"].get(self.figure), line["figures"].get("attainment")
        if value is None or (self.least is not None and (share is None or share < self.least)):
            return
        values = line["values"]
        square = (
            _said(values.get(self.x_axis)),
            "" if self.y_axis is None else _said(values.get(self.y_axis)),
        )
        small = self.figure.endswith("_ms")
        known = self._best.get(square)
        if known is None or (value < known[0] if small else value > known[0]):
            self._best[square] = (value, {name: values[name] for name in self.others})

    def rows(self) -> list[list[str]]:
        """The map as a table: one row a value of y, one column a value of x."""
        return [
            [y, *(_number(self._best[x, y][0]) if (x, y) in self._best else "–" for x in self.xs)]
            for y in self.ys
        ]

    def draw(self) -> Any:
        """Plotly figure."""
        from plotly.graph_objects import Figure, Heatmap

        z = [[self._best.get((x, y), (None, {}))[0] for x in self.xs] for y in self.ys]
        notes = [[self._note(x, y) for x in self.xs] for y in self.ys]
        head = {"text": self.figure, "side": "right", "font": {"size": 13}}
        figure = Figure(
            Heatmap(
                x=self.xs,
                y=self.ys,
                z=z,
                customdata=notes,
                colorscale=SCALE,
                reversescale=self.figure.endswith("_ms"),
                colorbar={"title": head, "thickness": 12},
                xgap=2,
                ygap=2,
                texttemplate="%{z:.4~g}" if len(self.xs) <= 16 else None,
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
        side = {"type": "category", "showgrid": False, "zeroline": False}
        figure.update_layout(
            layout(
                "",
                max(240, min(900, 130 + 44 * len(self.ys))),
                xaxis={**side, "title": {"text": self.x_axis}},
                yaxis={**side, "title": {"text": self.y_axis or ""}},
            )
        )
        figure.update_layout(margin_t=12)
        return figure

    def _note(self, x: str, y: str) -> str:
        where = f"{self.x_axis} {x}" + (f", {self.y_axis} {y}" if self.y_axis else "")
        if (x, y) not in self._best:
            return f"{where}: no cell"
        value, how = self._best[x, y]
        rest = "".join(f"<br>{name} {_said(v)}" for name, v in how.items())
        return f"{where}<br><b>{self.figure} {_number(value)}</b>{rest}"

    def write(self, path: Path) -> None:
        """One page with the map and its table; it loads nothing."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from plotly.offline import get_plotlyjs

        best = "smallest" if self.figure.endswith("_ms") else "largest"
        over = f", the {best} over {', '.join(self.others)}" if self.others else ""
        over += f", at least {self.least:.0%} within limits" if self.least is not None else ""
        figure = self.draw().to_json()
        for sign in "<>&":  # so that nothing in the figure ends the script element
            figure = figure.replace(sign, f"\\u{ord(sign):04x}")
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
        )
        page = environment.get_template("sweep_map.html.j2").render(
            mark="Measured on the engine of one machine" if self.measured else "Simulated",
            cells=f"{self.cells:,} cells" + (f", {self.failed:,} failed" if self.failed else ""),
            what=f"{self.figure}{over}",
            same=", ".join(self.same),
            x_axis=self.x_axis,
            y_axis=self.y_axis or "",
            xs=self.xs,
            rows=self.rows(),
            figure=figure,
            plotly_js=get_plotlyjs(),
        )
        path.write_text(page, encoding="utf-8")


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
