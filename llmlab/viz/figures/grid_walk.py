"""Which program of a decode kernel reads which slots: the grid walks the block table.

    request B, 23 tokens, blocks of 4, tiles of 8        split 0          split 1
    position     0 ........ 7 8 ....... 15 16 ... 22 -   positions 0-15   positions 16-22, one
    block        [ 5 ][ 2 ]  [ 11 ][ 9 ]   [ 3 ][ 7 ]                     lane of a tile masked

One program owns a request, a head and a split. It folds its positions tile by tile; where they
lie in the pool, the block table says. How the splits divide a context is the library's rule,
without its shortest split (256 tokens), which would leave nothing to see here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.viz.palette import DECODE, HAIRLINE, PREFILL, QUEUE, QUIET, READY, layout

INKS = (PREFILL, DECODE, READY, QUEUE)
LETTERS = "ABCDEFGH"
COLUMNS = 12
POOL_LEGEND = "the pool · number: entry of the table<br>letter: another request's · dot: free"
EMPTY = "rgba(122,122,122,0.13)"


@dataclass(frozen=True)
class Program:
    """One split: positions begin .. end - 1, the table entries it looks up, lanes it masks."""

    split: int
    begin: int
    end: int
    entries: tuple[int, ...]
    tiles: int
    masked: int


@dataclass(frozen=True)
class GridWalk:
    """A batch of decodes and the way of one request's programs through the pool.

    tables: block table of each request; `request` is the one that is looked at; a tile has
    `tile` keys. The grid has a program for each request, head and split.
    """

    contexts: tuple[int, ...]
    tables: tuple[tuple[int, ...], ...]
    num_blocks: int
    page: int
    tile: int
    heads: int
    request: int
    programs: tuple[Program, ...]

    @property
    def context(self) -> int:
        return self.contexts[self.request]

    @property
    def table(self) -> tuple[int, ...]:
        return self.tables[self.request]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Programs: requests x heads x splits."""
        return len(self.contexts), self.heads, len(self.programs)


def grid_walk(
    contexts: Sequence[int], page: int, request: int = 0, splits: int = 1, *, tile: int = 8
) -> GridWalk:
    """The walk over blocks in no order (the same for the same sizes). Lengths in tokens, >= 1."""
    for name, value in (("page", page), ("splits", splits), ("tile", tile)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be a whole number >= 1")
    if not 0 <= request < len(contexts) or min(contexts) < 1:
        raise ValueError(
            f"request = {request}, contexts = {list(contexts)}: one of them, each >= 1"
        )
    counts = [-(-context // page) for context in contexts]
    total = -(-(sum(counts) + 2) // COLUMNS) * COLUMNS
    free = random.Random(7).sample(range(total), total)
    tables = tuple(tuple(free.pop() for _ in range(count)) for count in counts)
    context = contexts[request]
    share = -(-context // splits)
    length = -(-share // tile) * tile
    programs = tuple(_program(s, s * length, length, context, page, tile) for s in range(splits))
    return GridWalk(tuple(contexts), tables, total, page, tile, 4, request, programs)


def _program(split: int, begin: int, length: int, context: int, page: int, tile: int) -> Program:
    end = min(begin + length, context)
    if end <= begin:
        return Program(split, begin, begin, (), 0, 0)
    tiles = -(-(end - begin) // tile)
    entries = tuple(range(begin // page, (end - 1) // page + 1))
    return Program(split, begin, end, entries, tiles, tiles * tile - (end - begin))


# ---------------------------------------------------------------- as a figure


def walk_figure(walk: GridWalk) -> Any:
    """Plotly figure: above, the context cut into splits and tiles; below, the pool."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 300, barmode="overlay", showlegend=False))
    bare = {"showgrid": False, "zeroline": False, "fixedrange": True}
    apart = {"ticklabelstandoff": 6}
    small = {"size": 12}
    figure.update_layout(
        margin={"l": 10, "r": 16, "t": 56, "b": 62},
        xaxis={**bare, "anchor": "y", "title": {"text": "", "font": small}},
        xaxis2={
            **bare,
            "anchor": "y2",
            "showticklabels": False,
            "ticks": "",
            "showline": False,
            "title": {"text": POOL_LEGEND, "font": small},
        },
        yaxis={**bare, **apart, "ticks": "", "showline": False},
        yaxis2={
            **bare,
            **apart,
            "ticks": "",
            "anchor": "x2",
            "title": {"text": "block", "font": small},
        },
    )
    line = {"width": 1, "color": HAIRLINE}
    figure.add_bar(name="read", orientation="h", marker={"line": line})
    figure.add_bar(name="masked", orientation="h", hoverinfo="skip")
    figure.add_scatter(
        name="tile", mode="lines", hoverinfo="skip", line={"color": QUIET, "dash": "dot"}
    )
    figure.add_scatter(name="block", mode="text", hoverinfo="skip")
    figure.add_bar(name="pool", orientation="h", xaxis="x2", yaxis="y2")
    figure.add_scatter(name="entry", mode="text", hoverinfo="skip", xaxis="x2", yaxis="y2")
    update_walk(figure, walk)
    return figure


def update_walk(figure: Any, walk: GridWalk) -> None:
    """Bring the figure's six traces up to the walk, in place."""
    read, masked, tile, block, pool, entry = figure.data
    spans = list(_spans(walk))
    read.update(
        x=[end - begin for _, _, begin, end in spans],
        base=[begin for _, _, begin, _ in spans],
        y=[split for split, _, _, _ in spans],
        width=[0.62] * len(spans),
        marker={"color": [INKS[split % len(INKS)] for split, _, _, _ in spans]},
        hovertemplate="%{customdata}<extra></extra>",
        customdata=[
            f"split {s}: positions {b} to {e - 1}, table entry {j}, block {walk.table[j]}"
            for s, j, b, e in spans
        ],
    )
    short = [p for p in walk.programs if p.masked]
    masked.update(
        x=[p.masked for p in short],
        base=[p.end for p in short],
        y=[p.split for p in short],
        width=[0.62] * len(short),
        marker={
            "color": "rgba(0,0,0,0)",
            "line": {"width": 1, "color": QUIET},
            "pattern": {"shape": "/", "fgcolor": QUIET, "size": 6, "solidity": 0.25},
        },
    )
    wide = [s for s in spans if s[3] - s[2] >= max(2, walk.context // 36)]
    block.update(
        x=[(begin + end) / 2 for _, _, begin, end in wide],
        y=[split for split, _, _, _ in wide],
        text=[f"<b>{walk.table[j]}</b>" for _, j, _, _ in wide],
        textfont={"size": 12, "color": "white"},
    )
    ends = [(p.split, p.begin + t * walk.tile) for p in walk.programs for t in range(1, p.tiles)]
    tile.update(
        x=[x for _, at in ends for x in (at, at, None)],
        y=[y for split, _ in ends for y in (split - 0.45, split + 0.45, None)],
    )
    _update_pool(pool, entry, walk)
    _update_axes(figure, walk)


def _spans(walk: GridWalk) -> Iterator[tuple[int, int, int, int]]:
    """(split, table entry, first position, end) of every stretch a program reads in a block."""
    for p in walk.programs:
        for j in p.entries:
            begin, end = max(p.begin, j * walk.page), min(p.end, (j + 1) * walk.page)
            yield p.split, j, begin, end


def _update_pool(pool: Any, entry: Any, walk: GridWalk) -> None:
    reader: dict[int, list[int]] = {}
    for split, j, _, _ in _spans(walk):
        reader.setdefault(walk.table[j], []).append(split)
    owner = {b: r for r, table in enumerate(walk.tables) for b in table}
    places = [divmod(b, COLUMNS) for b in range(walk.num_blocks)]
    pool.update(
        x=[0.9] * walk.num_blocks,
        base=[column for _, column in places],
        y=[row for row, _ in places],
        width=[0.8] * walk.num_blocks,
        marker={
            "color": [INKS[reader[b][0] % 4] if b in reader else EMPTY for b in range(len(places))],
            "line": {"width": 0},
        },
        hovertemplate="%{customdata}<extra></extra>",
        customdata=[_about(b, owner, reader, walk) for b in range(walk.num_blocks)],
    )
    signs = []
    for b in range(walk.num_blocks):
        if b in reader:
            signs.append(f"<b>{walk.table.index(b)}</b>")
        else:
            signs.append(LETTERS[owner[b]] if b in owner else "·")
    inks = ["white" if b in reader else QUIET for b in range(walk.num_blocks)]
    entry.update(
        x=[column + 0.45 for _, column in places],
        y=[row for row, _ in places],
        text=signs,
        textfont={"size": 12, "color": inks},
    )


def _about(b: int, owner: dict[int, int], reader: dict[int, list[int]], walk: GridWalk) -> str:
    if b in reader:
        splits = " and ".join(map(str, reader[b]))
        return f"block {b}: entry {walk.table.index(b)} of the table, read by split {splits}"
    return f"block {b}: {'request ' + LETTERS[owner[b]] if b in owner else 'nobody'}"


def _update_axes(figure: Any, walk: GridWalk) -> None:
    rows, splits = walk.num_blocks // COLUMNS, len(walk.programs)
    top, bottom = 30 * splits + 26, 26 * rows
    height = top + bottom + 192
    inner = height - 118
    cut = bottom / inner
    step = 8 if walk.context <= 64 else 16
    reach = max(p.end + p.masked for p in walk.programs)
    figure.layout.height = height
    figure.layout.xaxis.update(range=[0, reach], tickvals=list(range(0, reach + 1, step)))
    figure.layout.xaxis.title.text = f"position in the context · dotted: a tile of {walk.tile} ends"
    figure.layout.yaxis.update(
        domain=[cut + 74 / inner, 1],
        range=[splits - 0.5, -0.5],
        tickvals=list(range(splits)),
        ticktext=[f"split {s}" for s in range(splits)],
    )
    figure.layout.xaxis2.range = [-0.1, COLUMNS]
    figure.layout.yaxis2.update(
        domain=[0, cut],
        range=[rows - 0.5, -0.5],
        tickvals=list(range(rows)),
        ticktext=[str(COLUMNS * row) for row in range(rows)],
    )
    figure.layout.title.text = (
        f"Request {LETTERS[walk.request]}: {splits} "
        f"program{'s' if splits > 1 else ''} over {len(walk.table)} blocks"
    )


# ---------------------------------------------------------------- as text

WALK_HEAD = [
    "program (request, head, split)",
    "positions",
    "blocks in order",
    "tiles",
    "masked lanes",
]


def walk_rows(walk: GridWalk) -> list[list[str]]:
    """One row for each program of the request's first head."""
    return [
        [
            f"({walk.request}, 0, {p.split})",
            f"{p.begin} to {p.end - 1}" if p.end > p.begin else "none",
            " ".join(str(walk.table[j]) for j in p.entries) or "–",
            str(p.tiles),
            str(p.masked),
        ]
        for p in walk.programs
    ]


def walk_sentence(walk: GridWalk) -> str:
    """The picture in words."""
    r, h, s = walk.grid
    last = walk.context % walk.page or walk.page
    idle = sum(p.end <= p.begin for p in walk.programs)
    more = f" Splits with nothing to do: {idle}." if idle else ""
    return (
        f"Grid {r} requests × {h} heads × {s} split{'s' * (s != 1)} = {r * h * s} programs. "
        f"Request {LETTERS[walk.request]}: {walk.context} tokens in {len(walk.table)} blocks, "
        f"{last} of {walk.page} slots of the last one hold a token.{more}"
    )
