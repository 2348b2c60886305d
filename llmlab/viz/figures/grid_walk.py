"""The walk of a decode's programs through the pool, as a picture, as a table and in words."""

from __future__ import annotations

from typing import Any

from llmlab.viz.grid_walk import COLUMNS, LETTERS, GridWalk
from llmlab.viz.palette import DECODE, HAIRLINE, PREFILL, QUEUE, QUIET, READY, layout

INKS = (PREFILL, DECODE, READY, QUEUE)
POOL_LEGEND = "the pool · number: entry of the table<br>letter: another request's · dot: free"
EMPTY = "rgba(122,122,122,0.13)"


def walk_figure(walk: GridWalk) -> Any:
    """Plotly figure: above, the context cut into splits and tiles; below, the pool."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 300, barmode="overlay", showlegend=False))
    bare = {"showgrid": False, "zeroline": False, "fixedrange": True}
    still = {**bare, "ticks": "", "showline": False}  # an axis of names
    rows = {"ticks": "", "ticklabelstandoff": 6}
    small = {"size": 12}
    legend = {"title": {"text": POOL_LEGEND, "font": small}}
    figure.update_layout(
        margin={"l": 10, "r": 16, "t": 56, "b": 62},
        xaxis={**bare, "anchor": "y", "title": {"text": "", "font": small}},
        xaxis2={**still, **legend, "anchor": "y2", "showticklabels": False},
        yaxis={**still, **rows},
        yaxis2={**bare, **rows, "anchor": "x2", "title": {"text": "block", "font": small}},
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
    parts = list(walk.stretches())
    read.update(
        x=[part.end - part.begin for part in parts],
        base=[part.begin for part in parts],
        y=[part.split for part in parts],
        width=[0.62] * len(parts),
        marker={"color": [INKS[part.split % len(INKS)] for part in parts]},
        hovertemplate="%{customdata}<extra></extra>",
        customdata=[
            f"split {split}: positions {begin} to {end - 1}, table entry {entry}, "
            f"block {walk.table[entry]}"
            for split, entry, begin, end in parts
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
    wide = [part for part in parts if part.end - part.begin >= max(2, walk.context // 36)]
    block.update(
        x=[(part.begin + part.end) / 2 for part in wide],
        y=[part.split for part in wide],
        text=[f"<b>{walk.table[part.entry]}</b>" for part in wide],
        textfont={"size": 12, "color": "white"},
    )
    ends = [(p.split, p.begin + t * walk.tile) for p in walk.programs for t in range(1, p.tiles)]
    tile.update(
        x=[x for _, at in ends for x in (at, at, None)],
        y=[y for split, _ in ends for y in (split - 0.45, split + 0.45, None)],
    )
    _update_pool(pool, entry, walk)
    _update_axes(figure, walk)


def _update_pool(pool: Any, entry: Any, walk: GridWalk) -> None:
    readers: dict[int, list[int]] = {}  # block -> the splits that read in it
    for part in walk.stretches():
        readers.setdefault(walk.table[part.entry], []).append(part.split)
    owner = {b: LETTERS[r] for r, table in enumerate(walk.tables) for b in table}
    colours, signs, inks, notes = [], [], [], []
    for b in range(walk.num_blocks):
        if splits := readers.get(b):
            number = walk.table.index(b)
            colours.append(INKS[splits[0] % len(INKS)])
            signs.append(f"<b>{number}</b>")
            inks.append("white")
            by = " and ".join(map(str, splits))
            notes.append(f"block {b}: entry {number} of the table, read by split {by}")
        else:
            colours.append(EMPTY)
            signs.append(owner.get(b, "·"))
            inks.append(QUIET)
            notes.append(f"block {b}: {f'request {owner[b]}' if b in owner else 'nobody'}")
    rows, columns = zip(*(divmod(b, COLUMNS) for b in range(walk.num_blocks)), strict=True)
    pool.update(
        x=[0.9] * walk.num_blocks,
        base=columns,
        y=rows,
        width=[0.8] * walk.num_blocks,
        marker={"color": colours, "line": {"width": 0}},
        hovertemplate="%{customdata}<extra></extra>",
        customdata=notes,
    )
    entry.update(
        x=[column + 0.45 for column in columns],
        y=rows,
        text=signs,
        textfont={"size": 12, "color": inks},
    )


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
