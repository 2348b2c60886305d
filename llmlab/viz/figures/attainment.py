"""Who keeps the promise at which rate: equal devices as replicas, and as prefill and decode pools.

The shape is that of the attainment figures of Zhong et al., "DistServe: Disaggregating Prefill and
Decoding for Goodput-optimized Large Language Model Serving", OSDI 2024: the share of requests
within both limits against the rate per device, with a line at 90 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.measure.limits import Limits
from llmlab.measure.per_request import RequestMetrics, request_metrics
from llmlab.measure.stats import percentile
from llmlab.trace import Trace
from llmlab.viz.palette import AXIS, DECODE, PREFILL, QUIET, layout
from llmlab.viz.show import number

TARGET = 0.9  # share of requests, as in the paper
COLOCATED = "colocated"
RATE = "requests/min per GPU"


@dataclass(frozen=True)
class Served:
    """One run at a rate per device. `visible`: ms of each transfer that computing did not hide."""

    rate: float
    requests: tuple[RequestMetrics, ...]
    judged: int
    visible: tuple[float, ...] = ()

    def attained(self, limits: Limits) -> float | None:
        """Share of the requests, rejected ones counted, that met every limit; None without any."""
        good = sum(not limits.misses(m) for m in self.requests)
        return good / self.judged if self.judged else None

    def p90(self, name: str) -> float | None:
        """90th percentile of ttft or tpot, ms."""
        values = [getattr(m, name) for m in self.requests]
        return percentile([v for v in values if v is not None], 90)


def served(trace: Trace, rate: float) -> Served:
    """What a judge needs of a run; the same requests count as in `measure.metrics`."""
    records = trace.requests.values()
    ended = [r for r in records if r.outcome in ("completed", "failed", "rejected")]
    done = tuple(request_metrics(r) for r in ended if r.outcome == "completed")
    visible = [move["visible_ns"] for move in trace.meta.get("moves", ())]
    return Served(rate, done, len(ended), tuple(v / 1e6 for v in visible if v is not None))


def carried(runs: Sequence[Served], limits: Limits, target: float = TARGET) -> float | None:
    """The highest rate up to which every run attains the target; None: not even the lowest."""
    best = None
    for run in sorted(runs, key=lambda r: r.rate):
        share = run.attained(limits)
        if share is None or share < target:
            break
        best = run.rate
    return best


PLOTS = ("both kept, %", "TTFT p90, ms", "TPOT p90, ms")


def attainment_figure() -> Any:
    """Plotly figure, empty: three plots over the rate, both ways to use the devices in each."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=3, subplot_titles=list(PLOTS), horizontal_spacing=0.12)
    below = {"orientation": "h", "x": 0, "y": -0.32}
    figure.update_layout(layout("", 380, legend=below))
    signs = ((PREFILL, "circle", "solid"), (DECODE, "diamond", "dash"))
    for column in (1, 2, 3):
        for colour, symbol, dash in signs:
            figure.add_scatter(
                row=1,
                col=column,
                mode="lines+markers",
                line={"color": colour, "dash": dash},
                marker={"symbol": symbol, "size": 8},
                showlegend=column == 1,
                hovertemplate="%{x} a minute: %{y:.4g}<extra>%{fullData.name}</extra>",
            )
    figure.update_xaxes(rangemode="tozero", tickangle=0, **AXIS)
    # One title for the three: on a narrow page they would run into each other.
    figure.update_xaxes(title={"text": RATE, "font": {"size": 13}}, col=2)
    figure.update_yaxes(rangemode="tozero", **AXIS)
    figure.update_yaxes(range=[0, 105], row=1, col=1)
    figure.update_annotations(font_size=13, yshift=6)
    return figure


def update_attainment(
    figure: Any,
    colocated: Sequence[Served],
    apart: Sequence[Served],
    names: tuple[str, str],
    limits: Limits,
    rate: float | None = None,
) -> None:
    """Redraw in place. names: of the two ways; rate: the one to look at, a dotted line."""
    for index, runs in enumerate((colocated, apart)):
        shares = [run.attained(limits) for run in runs]
        series = (
            [None if share is None else 100 * share for share in shares],
            [run.p90("ttft") for run in runs],
            [run.p90("tpot") for run in runs],
        )
        for column, values in enumerate(series):
            line = figure.data[2 * column + index]
            line.update(x=[run.rate for run in runs], y=values, name=names[index])
    ceilings = (100 * TARGET, limits.ttft_ms, limits.tpot_ms)
    for column, name, ceiling in ((2, "ttft", limits.ttft_ms), (3, "tpot", limits.tpot_ms)):
        # From the runs: a live figure has its new lines only when the update is over.
        highest = max((run.p90(name) or 0.0 for run in (*colocated, *apart)), default=1.0)
        # A queue without end would squeeze flat what is near the limit.
        top = highest if ceiling is None else max(ceiling, min(highest, 4 * ceiling))
        figure.update_yaxes(range=[0, 1.08 * top], row=1, col=column)
    furthest = max((run.rate for run in colocated), default=100)
    figure.update_xaxes(dtick=100 if furthest > 150 else 50)  # few enough for a narrow page
    figure.layout.shapes = [
        *(_across(column, ceiling) for column, ceiling in enumerate(ceilings, 1) if ceiling),
        *(_upright(column, rate) for column in (1, 2, 3) if rate is not None),
    ]
    figure.layout.title.text = f"{names[0]} and {names[1]} (simulated)"
    figure.layout.margin.t = 76


def _axis(letter: str, column: int) -> str:
    return letter if column == 1 else f"{letter}{column}"


def _across(column: int, y: float) -> dict[str, Any]:
    line = {"dash": "dash", "width": 1, "color": QUIET}
    where = {"xref": f"{_axis('x', column)} domain", "yref": _axis("y", column)}
    return {"type": "line", **where, "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _upright(column: int, x: float) -> dict[str, Any]:
    line = {"dash": "dot", "width": 1.5, "color": QUIET}
    where = {"xref": _axis("x", column), "yref": f"{_axis('y', column)} domain"}
    return {"type": "line", **where, "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line}


def attainment_head(names: tuple[str, str]) -> list[str]:
    """Column heads of `attainment_rows`."""
    parts = ("within both limits", "TTFT p90, in ms", "TPOT p90, in ms")  # long: they wrap
    return [RATE, *(f"{name}: {part}" for name in names for part in parts), "transfer shown ms"]


def attainment_rows(
    colocated: Sequence[Served], apart: Sequence[Served], limits: Limits
) -> list[list[str]]:
    """The figure as a table; the last column is the median visible part of a transfer."""
    rows = []
    for one, other in zip(colocated, apart, strict=True):
        row = [f"{one.rate:g}"]
        for run in (one, other):
            share = run.attained(limits)
            row.append("–" if share is None else f"{100 * share:.0f} %")
            row += [number(run.p90("ttft"), 0), number(run.p90("tpot"), 1)]
        rows.append([*row, number(percentile(list(other.visible), 50), 2)])
    return rows


def verdict(
    colocated: Sequence[Served],
    apart: Sequence[Served],
    names: tuple[str, str],
    limits: Limits,
    rate: float,
) -> str:
    """What follows at a rate, and up to which rate each way keeps both limits, in words."""
    meets = []
    for runs in (colocated, apart):
        run = min(runs, key=lambda r: abs(r.rate - rate))
        share = run.attained(limits)
        meets.append(share is not None and share >= TARGET)
    both = f"TTFT {limits.ttft_ms:g} ms and TPOT {limits.tpot_ms:g} ms"
    said = {
        (True, True): f"both meet {both}: disaggregation is not warranted",
        (True, False): f"only {names[0]} meets {both}: disaggregation would do harm",
        (False, True): f"only {names[1]} meets {both}: here disaggregation earns its link",
        (False, False): f"neither meets {both}",
    }[meets[0], meets[1]]
    most = [carried(runs, limits) for runs in (colocated, apart)]
    up_to = [
        f"{name} at no rate tried" if top is None else f"{name} up to {top:g}"
        for name, top in zip(names, most, strict=True)
    ]
    return (
        f"Simulated. At {rate:g} {RATE} {said}. "
        f"{100 * TARGET:.0f} % of requests within both limits: {up_to[0]}, {up_to[1]}."
    )
