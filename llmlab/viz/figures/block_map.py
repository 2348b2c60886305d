"""The pool of KV blocks as a map: who holds each block, how full it is, what can be found again.

A ▇▇   held by request A          A+B    shared, counted once in the pool
◇      free, content still there  ·      free
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llmlab.sched.base import BaseScheduler
from llmlab.sched.request import Request
from llmlab.viz.palette import DECODE, PREFILL, QUEUE, QUIET, READY, layout
from llmlab.viz.show import Shown, live_figure, table_html, table_text

COLOURS = (PREFILL, DECODE, READY, QUEUE)
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FREE, CACHED, HELD, SHARED = "free", "free, findable", "held", "shared"
COLUMNS = 8
ROW_PX = 54
LEGEND = "letter: who holds it · A+B: shared<br>◇ free, can still be found · dot: free"


@dataclass(frozen=True)
class Block:
    """One block. holders: request ids in order of admission; tokens: slots written so far."""

    index: int
    holders: tuple[str, ...]
    tokens: int
    findable: bool

    @property
    def state(self) -> str:
        if not self.holders:
            return CACHED if self.findable else FREE
        return SHARED if len(self.holders) > 1 else HELD


@dataclass(frozen=True)
class Holder:
    """One living request: `tokens` known, `computed` of them in the cache, its block table."""

    request_id: str
    letter: str
    colour: str
    status: str
    tokens: int
    computed: int
    hits: int
    preemptions: int
    table: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """The pool at one moment: copies, so a later step changes nothing in it."""

    block_size: int
    blocks: tuple[Block, ...]
    requests: tuple[Holder, ...]

    def count(self, *states: str) -> int:
        """How many blocks are in one of these states."""
        return sum(block.state in states for block in self.blocks)

    @property
    def held(self) -> int:
        return self.count(HELD, SHARED)


def snapshot(scheduler: BaseScheduler) -> Snapshot:
    """Read the live block tables; nothing in the scheduler changes."""
    running = scheduler.running
    pool, size = scheduler.blocks, scheduler.blocks.block_size
    holders: dict[int, list[str]] = {}
    written: dict[int, int] = {}
    for request in running:
        for place, block in enumerate(request.block_ids):
            holders.setdefault(block, []).append(request.request_id)
            here = min(size, max(0, request.num_computed_tokens - place * size))
            written[block] = max(here, written.get(block, 0))
    blocks = []
    for index in range(pool.num_blocks):
        findable = pool.is_cached(index)
        # A free block that can be found is full: only full blocks get a key.
        tokens = written.get(index, size if findable else 0)
        blocks.append(Block(index, tuple(holders.get(index, ())), tokens, findable))
    everyone = sorted([*running, *scheduler.waiting], key=lambda r: r.arrival)
    return Snapshot(size, tuple(blocks), tuple(map(_holder, everyone)))


def _holder(request: Request) -> Holder:
    return Holder(
        request.request_id,
        LETTERS[request.arrival % len(LETTERS)],
        COLOURS[request.arrival % len(COLOURS)],
        request.status.value,
        request.num_tokens,
        request.num_computed_tokens,
        request.num_cached_tokens,
        request.num_preemptions,
        tuple(request.block_ids),
    )


def label(block: Block, letters: dict[str, str]) -> str:
    """What stands in the cell: `A`, `A+B`, `A+3` for A and three more, `◇` or `·`."""
    names = [letters[holder] for holder in block.holders]
    if not names:
        return "◇" if block.findable else "·"
    if len(names) > 2:
        return f"{names[0]}+{len(names) - 1}"
    return "+".join(names)


def letters_of(shot: Snapshot) -> dict[str, str]:
    """Request id -> its letter, in order of arrival."""
    return {r.request_id: r.letter for r in shot.requests}


# ---------------------------------------------------------------- as a figure


def block_map(shot: Snapshot) -> Any:
    """Plotly figure: a cell for each block, with its sign and a bar for the slots written."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("KV blocks", 240, barmode="overlay", showlegend=False))
    figure.add_bar(
        name="block",
        orientation="h",
        marker={"color": "rgba(122,122,122,0.13)", "line": {"width": 0}},
    )
    figure.add_bar(name="written", orientation="h", hoverinfo="skip")
    figure.add_scatter(name="sign", mode="text", hoverinfo="skip")
    figure.update_xaxes(visible=True, showgrid=False, zeroline=False, showticklabels=False)
    figure.update_xaxes(ticks="", showline=False, range=[-0.15, COLUMNS + 0.05], fixedrange=True)
    figure.update_xaxes(title={"text": LEGEND, "font": {"size": 12}})
    figure.update_yaxes(showgrid=False, zeroline=False, ticks="", showline=False, fixedrange=True)
    update_block_map(figure, shot)
    return figure


def update_block_map(figure: Any, shot: Snapshot) -> None:
    """Bring the figure's three traces up to the snapshot, in place."""
    letters, colours = letters_of(shot), {r.request_id: r.colour for r in shot.requests}
    places = [divmod(block.index, COLUMNS) for block in shot.blocks]
    cells, written, signs = figure.data
    cells.update(
        x=[0.9] * len(places),
        base=[column for _, column in places],
        y=[row for row, _ in places],
        width=[0.86] * len(places),
        customdata=[describe(block, shot) for block in shot.blocks],
        hovertemplate="%{customdata}<extra></extra>",
    )
    bars = list(_bars(shot, colours))
    written.update(
        x=[bar[0] for bar in bars],
        base=[bar[1] for bar in bars],
        y=[bar[2] for bar in bars],
        width=[bar[3] for bar in bars],
        marker={"color": [bar[4] for bar in bars], "line": {"width": 0}},
    )
    ink = [colours[b.holders[0]] if b.holders else QUIET for b in shot.blocks]
    signs.update(
        x=[column + 0.45 for _, column in places],
        y=[row - 0.12 for row, _ in places],
        text=[_bold(label(block, letters)) for block in shot.blocks],
        textfont={"size": [15 if len(b.holders) < 2 else 13 for b in shot.blocks], "color": ink},
    )
    rows = -(-len(places) // COLUMNS)
    figure.layout.title.text = f"KV blocks, {shot.block_size} tokens each"
    figure.layout.height = 126 + ROW_PX * rows
    figure.layout.yaxis.update(
        range=[rows - 0.5, -0.5],
        tickvals=list(range(rows)),
        ticktext=[f"{COLUMNS * row}…" for row in range(rows)],
    )


def _bold(text: str) -> str:
    return f"<b>{text}</b>"


def _bars(
    shot: Snapshot, colours: dict[str, str]
) -> Iterable[tuple[float, float, float, float, str]]:
    """(length, start, height, thickness, colour): a strip for each holder, at the cell's foot."""
    for block in shot.blocks:
        row, column = divmod(block.index, COLUMNS)
        inks = [colours[holder] for holder in block.holders[:3]]
        if not inks and block.findable:
            inks = [QUIET]
        for number, ink in enumerate(inks):
            thickness = 0.24 / len(inks)
            middle = row + 0.18 + thickness * (number + 0.5)
            yield 0.9 * block.tokens / shot.block_size, column, middle, 0.9 * thickness, ink


def describe(block: Block, shot: Snapshot) -> str:
    """A block in words: for the pointer, and for a reader who sees no colour."""
    names = letters_of(shot)
    who = ", ".join(names[holder] for holder in block.holders) or "nobody"
    found = ", can be found by content" if block.findable else ""
    return f"block {block.index}: {who} · {block.tokens} of {shot.block_size} slots written{found}"


# ---------------------------------------------------------------- as text

BLOCK_HEAD = [
    "request",
    "state",
    "in cache / known",
    "blocks",
    "shared",
    "empty slots",
    "from cache",
    "preempted",
]


def block_rows(shot: Snapshot) -> list[list[str]]:
    """One row for each living request; blocks in order of position."""
    shared = {block.index for block in shot.blocks if block.state == SHARED}
    return [
        [
            r.letter if r.letter == r.request_id else f"{r.letter} ({r.request_id})",
            r.status,
            f"{r.computed} / {r.tokens}",
            " ".join(map(str, r.table)) or "–",
            str(len(shared.intersection(r.table))),
            str(len(r.table) * shot.block_size - r.computed),
            str(r.hits),
            str(r.preemptions),
        ]
        for r in shot.requests
    ]


def block_summary(shot: Snapshot) -> str:
    """The pool in one sentence."""
    return (
        f"{len(shot.blocks)} blocks: {shot.held} held, {shot.count(SHARED)} of them shared; "
        f"{shot.count(FREE, CACHED)} free, {shot.count(CACHED)} of them still findable"
    )


def text_map(shot: Snapshot) -> str:
    """The map without a figure: the cells' signs in rows."""
    letters = letters_of(shot)
    signs = [label(block, letters) for block in shot.blocks]
    lines = []
    for start in range(0, len(signs), COLUMNS):
        row = signs[start : start + COLUMNS]
        lines.append(f"{start:4d}  " + " ".join(f"{sign:<3}" for sign in row).rstrip())
    return "\n".join(lines)


def show_blocks(scheduler: BaseScheduler) -> Shown:
    """The pool as it is now, of any scheduler, a running engine's too."""
    shot = snapshot(scheduler)
    caption, rows = block_summary(shot), block_rows(shot)
    return Shown(
        live_figure(block_map(shot)),
        lambda: table_html(caption, BLOCK_HEAD, rows),
        lambda: text_map(shot) + "\n" + table_text(caption, BLOCK_HEAD, rows),
    )
