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
from typing import NamedTuple

LETTERS = "ABCDEFGH"  # of the requests
COLUMNS = 12  # of the pool as it is drawn: it has whole rows
HEADS = 4


@dataclass(frozen=True)
class Program:
    """One split: positions begin .. end - 1, the table entries it looks up, lanes it masks."""

    split: int
    begin: int
    end: int
    entries: tuple[int, ...]
    tiles: int
    masked: int


class Stretch(NamedTuple):
    """What one program reads in one block: positions begin .. end - 1, by entry `entry`."""

    split: int
    entry: int
    begin: int
    end: int


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

    def stretches(self) -> Iterator[Stretch]:
        """All that the programs of the request read, in order."""
        for p in self.programs:
            for entry in p.entries:
                first = entry * self.page
                yield Stretch(p.split, entry, max(p.begin, first), min(p.end, first + self.page))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Programs: requests x heads x splits."""
        return len(self.contexts), self.heads, len(self.programs)


def grid_walk(
    contexts: Sequence[int], page: int, request: int = 0, splits: int = 1, *, tile: int = 8
) -> GridWalk:
    """The walk over blocks in no order (the same for the same sizes). Lengths in tokens, >= 1.

    ValueError for a size below 1, and for more requests than there are letters.
    """
    for name, value in (("page", page), ("splits", splits), ("tile", tile)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be a whole number >= 1")
    if not 0 <= request < len(contexts) <= len(LETTERS) or min(contexts) < 1:
        raise ValueError(
            f"request = {request}, contexts = {list(contexts)}: must be one of "
            f"{len(LETTERS)} at most, each >= 1"
        )
    counts = [-(-context // page) for context in contexts]
    total = -(-(sum(counts) + 2) // COLUMNS) * COLUMNS
    free = random.Random(7).sample(range(total), total)
    tables = tuple(tuple(free.pop() for _ in range(count)) for count in counts)
    context = contexts[request]
    share = -(-context // splits)
    length = -(-share // tile) * tile
    programs = tuple(_program(s, s * length, length, context, page, tile) for s in range(splits))
    return GridWalk(tuple(contexts), tables, total, page, tile, HEADS, request, programs)


def _program(split: int, begin: int, length: int, context: int, page: int, tile: int) -> Program:
    end = min(begin + length, context)
    if end <= begin:
        return Program(split, begin, begin, (), 0, 0)
    tiles = -(-(end - begin) // tile)
    entries = tuple(range(begin // page, (end - 1) // page + 1))
    return Program(split, begin, end, entries, tiles, tiles * tile - (end - begin))
