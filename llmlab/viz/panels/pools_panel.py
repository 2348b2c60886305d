"""The same simulated GPUs as replicas and as prefill and decode pools: who keeps which promise."""

from __future__ import annotations

from typing import Any

from llmlab.measure.limits import Limits
from llmlab.perf.interconnect import interconnect_catalog
from llmlab.viz.figures.attainment import (
    COLOCATED,
    Served,
    attainment_figure,
    attainment_head,
    attainment_rows,
    served,
    update_attainment,
    verdict,
)
from llmlab.viz.panels.controls import Knob, guarded, menu_of
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.widgets import toolkit

BUDGETS = (2048, 512, 256, 128)
SPLITS = ("1P1D", "2P1D", "1P2D", "2P2D", "3P1D")
RATES = (30, 60, 90, 120, 150, 180, 210, 240)  # requests a minute per GPU
REQUESTS = 60  # of a run: a new split has to be there soon
BLOCK = 64  # tokens; larger blocks than usual are fewer to count


class PoolsPanel(Panel):
    """Attainment against rate for both ways to use the same number of devices, all simulated.

    The knobs of the limits and of the rate judge runs that are there; a new split or link is
    simulated at every rate. `runs()` gives both lists without a widget.
    max_num_batched_tokens: the token budget of a step on a colocated device, a menu too; the
    workers of the pools keep the first one.
    """

    def __init__(
        self,
        model: str = "llama-3.1-8b",
        hardware: str = "a100-80gb",
        *,
        prompt_tokens: int = 2048,
        output_tokens: int = 64,
        max_num_batched_tokens: int = 2048,
        rates: tuple[int, ...] = RATES,
        interconnect: str = "nvlink-3",
    ) -> None:
        w = toolkit()

        self.model, self.hardware, self.rates = model, hardware, rates
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.max_num_batched_tokens = max_num_batched_tokens
        self._kept: dict[tuple[str, str, int], list[Served]] = {}
        self.split = menu_of("Pools", "split", SPLITS, SPLITS[0])
        links = list(interconnect_catalog().entries)
        self.link = menu_of("Link between", "interconnect", links, interconnect)
        budgets = sorted({max_num_batched_tokens, *BUDGETS}, reverse=True)
        self.budget = menu_of(
            "Colocated: budget", "max_num_batched_tokens", budgets, max_num_batched_tokens
        )
        self.budget.add_class("llmlab-pools-budget")
        self.split.add_class("llmlab-pools-split")
        self.link.add_class("llmlab-pools-link")
        self.ttft = Knob("TTFT limit ms", 400, 50, 3000, 50, "pools-ttft")
        self.tpot = Knob("TPOT limit ms", 14, 2, 100, 1, "pools-tpot")
        self.rate = Knob("Requests/min per GPU", 120, rates[0], rates[-1], 30, "pools-rate")
        self.status, self.table = w.HTML(), w.HTML()
        self.figure = live_figure(attainment_figure())
        self._on_change(self._draw, self.split, self.link, self.budget)
        self._on_change(self._draw, self.ttft, self.tpot, self.rate)
        guarded(self._fail, self._draw)()  # before the box: that opens the figure as it is then
        self.widget = w.VBox(
            [
                self.split,
                self.link,
                self.budget,
                *(knob.widget for knob in (self.ttft, self.tpot, self.rate)),
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-pools-panel")

    @property
    def limits(self) -> Limits:
        return Limits(ttft_ms=float(self.ttft.value), tpot_ms=float(self.tpot.value))

    @property
    def names(self) -> tuple[str, str]:
        from llmlab.sim.pools import Pools

        return f"{Pools.parse(self.split.value).workers}x {COLOCATED}", str(self.split.value)

    def runs(self) -> tuple[list[Served], list[Served]]:
        """(colocated, disaggregated): a run a rate, on as many devices."""
        split, link = str(self.split.value), str(self.link.value)
        colocated = self._simulated(self.names[0], "", int(self.budget.value))
        return colocated, self._simulated(split, link, self.max_num_batched_tokens)

    def _simulated(self, way: str, link: str, budget: int) -> list[Served]:
        key = way, link, budget
        if key not in self._kept:
            self._kept[key] = [self._run(rate, link, budget) for rate in self.rates]
        return self._kept[key]

    def _run(self, rate: int, link: str, budget: int) -> Served:
        """One run; without a link on replicas, with one on pools."""
        from llmlab.sim.load import poisson_arrivals
        from llmlab.sim.pools import Pools, simulate_disaggregated, simulate_replicas

        pools = Pools.parse(self.split.value)
        shape = ("request", self.prompt_tokens, self.output_tokens)
        load = poisson_arrivals(rate / 60 * pools.workers, REQUESTS, [shape], seed=1)
        knobs: dict[str, Any] = {
            "max_num_batched_tokens": budget,
            "block_size": BLOCK,
            "record_steps": False,
        }
        place = (load, self.model, self.hardware)
        if link:
            trace = simulate_disaggregated(*place, pools, interconnect=link, **knobs)
        else:
            trace = simulate_replicas(*place, pools.workers, **knobs)
        return served(trace, rate)

    def _draw(self) -> None:
        colocated, apart = self.runs()
        rows = attainment_rows(colocated, apart, self.limits)
        self.table.value = table_html(
            "The same as a table (simulated)", attainment_head(self.names), rows
        )
        self._say("info", self.sentence())
        with self.figure.batch_update():
            update_attainment(
                self.figure, colocated, apart, self.names, self.limits, float(self.rate.value)
            )

    def sentence(self) -> str:
        """The verdict at the knobs' limits and rate, in words."""
        return verdict(*self.runs(), self.names, self.limits, float(self.rate.value))

    def _fail(self, text: str) -> None:
        self.table.value = ""
        super()._fail(text)

    def shown(self) -> Shown:
        head, rows = attainment_head(self.names), attainment_rows(*self.runs(), self.limits)
        return shown_table(self.sentence(), head, rows, self.widget, self.figure)
