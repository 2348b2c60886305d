"""The pool of KV blocks: who holds which, which are free, which can be found again by content.

    free:  [ head ... tail ]     blocks nobody holds: first those whose content nobody can find,
                                 the last used first, then the others, the first used first
    table: request.block_ids     position p lies in block table[p // B], slot p % B

A free block keeps its content until it is taken, so with the prefix cache on it can still be
found: its key is a hash of its tokens and of its parent's key, hence of everything before it.

This module knows block ids and token ids only: no model, no step, no policy.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from llmlab.config import require_int
from llmlab.sched.request import Request


class BlockManager:
    """N blocks of B slots. Every method either does all it says or changes nothing."""

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = False
    ) -> None:
        require_int("BlockManager", "num_blocks", num_blocks, 1)
        require_int("BlockManager", "block_size", block_size, 1)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._refs = [0] * num_blocks
        self._block_of: dict[bytes, int] = {}  # key -> the block that holds this content
        self._key_of: list[bytes | None] = [None] * num_blocks
        self._held: dict[str, list[int]] = {}  # on the move to or from another worker's pool

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, those with findable content counted."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their content, held or free."""
        return len(self._block_of)

    def is_cached(self, block: int) -> bool:
        """Can this block be found by its content, held or free?"""
        return self._key_of[block] is not None

    def blocks_for(self, num_tokens: int) -> int:
        """ceil(num_tokens / B)."""
        return -(-num_tokens // self.block_size)

    # ------------------------------------------------------------ taking

    def allocate(
        self, request: Request, num_tokens: int, hits: Sequence[int] = (), keep_free: int = 0
    ) -> bool:
        """A newcomer's table: the hits, then new blocks up to `num_tokens` positions.

        hits: what `lookup` found. keep_free: blocks that must be left over. A hit that nobody
        holds leaves the free list too, so it counts like a new block. False: nothing changed.
        """
        new = self.blocks_for(num_tokens) - len(hits)
        idle_hits = sum(self._refs[block] == 0 for block in hits)
        if new + idle_hits + keep_free > len(self._free):
            return False
        for block in hits:  # before new ones are taken, or they could be taken as new
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1
        request.block_ids = [*hits, *(self._take() for _ in range(new))]
        return True

    def append(self, request: Request, num_tokens: int) -> bool:
        """Make a table long enough for `num_tokens` positions. False: nothing changed."""
        new = self.blocks_for(num_tokens) - len(request.block_ids)
        if new > len(self._free):
            return False
        for _ in range(new):
            request.block_ids.append(self._take())
        return True

    def free(self, request: Request) -> None:
        """Give back a request's blocks, the last first: tails are evicted before heads."""
        for block in reversed(request.block_ids):
            self._give_back(block)
        request.block_ids = []

    def hold(self, name: str, blocks: Sequence[int]) -> None:
        """Keep blocks that a table holds from everybody else, even after that table is freed.

        For blocks whose content is on its way to or from another worker. ValueError if `name`
        holds some already or if nobody holds one of the blocks: its content may be gone.
        """
        if name in self._held:
            raise ValueError(f"name = {name!r}: holds blocks already")
        idle = [block for block in blocks if self._refs[block] == 0]
        if idle:
            raise ValueError(f"blocks = {idle}: must be in a table")
        self._held[name] = list(blocks)
        for block in self._held[name]:
            self._refs[block] += 1

    def release(self, name: str) -> bool:
        """End a hold. A name that holds nothing, say one released before, is no error: False."""
        blocks = self._held.pop(name, None)
        for block in reversed(blocks or ()):
            self._give_back(block)
        return blocks is not None

    @property
    def num_holds(self) -> int:
        """Names that hold blocks now."""
        return len(self._held)

    def _give_back(self, block: int) -> None:
        """One holder less. What cannot be found is no loss: it is the next to be taken.

        So a pool that is never full stays small: memory is touched only as far as it was needed.
        """
        self._refs[block] -= 1
        if self._refs[block] == 0:
            self._free[block] = None
            if self._key_of[block] is None:
                self._free.move_to_end(block, last=False)

    def _take(self) -> int:
        """The first free block; what it held can no longer be found."""
        block, _ = self._free.popitem(last=False)
        key = self._key_of[block]
        if key is not None:
            del self._block_of[key]
            self._key_of[block] = None
        self._refs[block] = 1
        return block

    # ------------------------------------------------------------ finding by content

    def lookup(self, request: Request) -> list[int]:
        """Blocks that hold the request's first tokens already, `num_tokens - 1` at most.

        One token is always left to compute: its logits choose the next one.
        """
        hits: list[int] = []
        if self.enable_prefix_caching:
            for key in self._keys(request, (request.num_tokens - 1) // self.block_size):
                block = self._block_of.get(key)
                if block is None:
                    break
                hits.append(block)
        return hits

    def register(self, request: Request, num_new: int) -> None:
        """Make the blocks findable that the last `num_new` computed tokens filled.

        Call it when the tokens are written, not when they are planned. Of two blocks with the
        same content the first stays the one that is found.
        """
        done = request.num_computed_tokens
        first, end = (done - num_new) // self.block_size, done // self.block_size
        if first == end or not self.enable_prefix_caching:
            return
        keys = self._keys(request, end)
        for index in range(first, end):
            if keys[index] not in self._block_of:
                block = request.block_ids[index]
                self._block_of[keys[index]] = block
                self._key_of[block] = keys[index]

    def reset_cache(self) -> None:
        """Forget all content; blocks in use stay in use."""
        self._block_of.clear()
        self._key_of = [None] * self.num_blocks

    def _keys(self, request: Request, count: int) -> list[bytes]:
        """Keys of the first `count` blocks; kept on the request, whose history only grows."""
        keys = request.block_keys
        for index in range(len(keys), count):
            start = index * self.block_size
            tokens = request.tokens(start, start + self.block_size)
            keys.append(block_key(keys[-1] if keys else b"", tokens))
        return keys[:count]

    # ------------------------------------------------------------ checking

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless `tables` (all live ones) and holds explain all blocks."""
        held: Counter[int] = Counter()
        for table in (*tables, *self._held.values()):
            if len(set(table)) != len(table):
                raise RuntimeError(f"a block twice in one table: {list(table)}")
            held.update(table)
        for block, refs in enumerate(self._refs):
            if refs != held[block]:
                raise RuntimeError(f"block {block}: ref count {refs}, in {held[block]} tables")
            if (refs == 0) != (block in self._free):
                raise RuntimeError(f"block {block}: ref count {refs} and free do not agree")
        if len(self._free) + len(held) != self.num_blocks:
            raise RuntimeError(
                f"{len(self._free)} free and {len(held)} held blocks of {self.num_blocks}"
            )
        keyed = {key: block for block, key in enumerate(self._key_of) if key is not None}
        if keyed != self._block_of:
            raise RuntimeError("the cache's two maps, key to block and block to key, differ")


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Key of a full block: 16 bytes over its parent's key (b"" for the first) and its tokens."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()
