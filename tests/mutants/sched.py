"""Wrong schedulers: each is one exact replacement in one file, and the tests must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` must occur exactly once in llmlab/sched/<file>."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "off by one in ceil",
        "blocks.py",
        "return -(-num_tokens // self.block_size)",
        "return num_tokens // self.block_size + 1",
    ),
    Mutant(
        "floor instead of ceil",
        "blocks.py",
        "return -(-num_tokens // self.block_size)",
        "return num_tokens // self.block_size",
    ),
    Mutant(
        "free in forward order",
        "blocks.py",
        "in reversed(request.block_ids)",
        "in list(request.block_ids)",
    ),
    Mutant(
        "hits not counted as taken from the free list",
        "blocks.py",
        "if new + idle_hits + keep_free >",
        "if new + keep_free >",
    ),
    Mutant(
        "hits touched after the new blocks are taken",
        "blocks.py",
        """        for block in hits:  # before new ones are taken, or they could be taken as new
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1
        request.block_ids = [*hits, *(self._take() for _ in range(new))]
""",
        """        fresh = [self._take() for _ in range(new)]
        for block in hits:
            if self._refs[block] == 0:
                self._free.pop(block, None)
            self._refs[block] += 1
        request.block_ids = [*hits, *fresh]
""",
    ),
    Mutant(
        "hits touched before the check",
        "blocks.py",
        "        idle_hits = sum(self._refs[block] == 0 for block in hits)\n",
        "        idle_hits = sum(self._refs[block] == 0 for block in hits)\n"
        "        for block in hits:\n"
        "            if self._refs[block] == 0:\n"
        "                self._free.move_to_end(block)\n",
    ),
    Mutant(
        "ref count not raised on a hit",
        "blocks.py",
        "            self._refs[block] += 1\n        request.block_ids = [",
        "            self._refs[block] = 1\n        request.block_ids = [",
    ),
    Mutant(
        "all tokens may be hits",
        "blocks.py",
        "(request.num_tokens - 1) // self.block_size",
        "request.num_tokens // self.block_size",
    ),
    Mutant(
        "a partial block becomes findable",
        "blocks.py",
        "done // self.block_size\n",
        "self.blocks_for(done)\n",
    ),
    Mutant(
        "hash without parent",
        "blocks.py",
        'keys[-1] if keys else b""',
        'b""',
    ),
    Mutant(
        "a reused block keeps its old hash",
        "blocks.py",
        "            del self._block_of[key]\n            self._key_of[block] = None\n",
        "            pass\n",
    ),
    Mutant(
        "a duplicate takes over the entry of the first",
        "blocks.py",
        "            if keys[index] not in self._block_of:\n",
        "            if True:\n",
    ),
    Mutant(
        "blocks findable before they are written",
        "base.py",
        "        self._fill(step)\n        return step\n",
        "        self._fill(step)\n"
        "        for r, n in step.scheduled:\n"
        "            r.num_computed_tokens += n\n"
        "            self.blocks.register(r, n)\n"
        "            r.num_computed_tokens -= n\n"
        "        return step\n",
    ),
    Mutant(
        "the most recently used block is evicted",
        "blocks.py",
        "self._free.popitem(last=False)",
        "self._free.popitem(last=True)",
    ),
    Mutant(
        "what can be found is evicted before what cannot",
        "blocks.py",
        "if self._key_of[block] is None:\n                self._free",
        "if self._key_of[block] is not None:\n                self._free",
    ),
    Mutant("forgotten refund", "plan.py", "                self.budget += n\n", ""),
    Mutant(
        "a victim stays scheduled",
        "plan.py",
        "                del self.scheduled[index]\n",
        "",
    ),
    Mutant(
        "a victim stays sampled",
        "plan.py",
        "                    self.known_sampled.remove(request)\n",
        "                    pass\n",
    ),
    Mutant(
        "admission in a step that preempted",
        "chunked.py",
        "        if not step.preempted:\n",
        "        if True:\n",
    ),
    Mutant(
        "computed not reset on preemption",
        "base.py",
        "        victim.num_computed_tokens = 0\n",
        "",
    ),
    Mutant(
        "resume with the prompt only",
        "base.py",
        "        victim.num_computed_tokens = 0\n",
        "        victim.num_computed_tokens = 0\n        victim.output_token_ids = []\n",
    ),
    Mutant(
        "the victim goes to the end of the queue",
        "queues.py",
        "        self._order.move_to_end(request.request_id, last=False)\n",
        "",
    ),
    Mutant(
        "the first admitted is the victim",
        "base.py",
        "max((*self.prefilling[-1:], *self.decoding[-1:]), key=BY_ADMISSION)",
        "min((*self.prefilling[:1], *self.decoding[:1]), key=BY_ADMISSION)",
    ),
    Mutant(
        "under priority the most urgent is the victim",
        "base.py",
        "return max(self._running(), key=BY_URGENCY)",
        "return min(self._running(), key=BY_URGENCY)",
    ),
    Mutant(
        "a token for every chunk",
        "plan.py",
        " and n == request.num_missing_tokens:\n",
        ":\n",
    ),
    Mutant(
        "a hit does not advance the request",
        "base.py",
        "        request.num_computed_tokens = len(hits) * self.config.block_size\n",
        "        request.num_computed_tokens = 0\n",
    ),
    Mutant(
        "abort keeps the blocks",
        "base.py",
        "else self.prefilling).remove(request)\n        self.blocks.free(request)\n",
        "else self.prefilling).remove(request)\n",
    ),
    Mutant(
        "a finished request keeps its blocks",
        "base.py",
        "            self.blocks.free(request)\n            del self._alive",
        "            del self._alive",
    ),
    Mutant(
        "abort twice ends it twice",
        "base.py",
        "request = self._alive.pop(request_id, None)",
        "request = self._alive.get(request_id)",
    ),
    Mutant(
        "a freed table can be freed again",
        "blocks.py",
        "            self._give_back(block)\n        request.block_ids = []\n",
        "            self._give_back(block)\n",
    ),
    Mutant(
        "a token for a request aborted meanwhile",
        "base.py",
        "        if self._ended_since_plan:\n",
        "        if False:\n",
    ),
    Mutant(
        "the output needs one slot more",
        "door.py",
        "            slots + 1,\n",
        "            slots,\n",
    ),
    Mutant(
        "the output is not counted at the door",
        "door.py",
        "            slots + 1,\n",
        "            slots + 2,\n",
    ),
    Mutant(
        "one token after the length",
        "request.py",
        " len(self.output_token_ids) >= self.max_tokens:\n            self.finish_reason",
        " len(self.output_token_ids) > self.max_tokens:\n            self.finish_reason",
    ),
    Mutant(
        "min_tokens forgotten",
        "request.py",
        " or len(self.output_token_ids) < self.params.min_tokens",
        "",
    ),
    Mutant(
        "length before stop",
        "request.py",
        "        if not self.stops_at(token) and len(",
        "        self.stops_at(token)\n        if len(",
    ),
    Mutant(
        "the watermark forgotten",
        "base.py",
        "return self._watermark if self.num_running else 0",
        "return 0",
    ),
    Mutant(
        "the watermark for a lonely request too",
        "base.py",
        "return self._watermark if self.num_running else 0",
        "return self._watermark",
    ),
    Mutant(
        "prompts before decodes",
        "chunked.py",
        '        if self.order == "admission" and self.prefilling:\n',
        "        if self.prefilling:\n",
    ),
    Mutant(
        "the threshold forgotten",
        "chunked.py",
        "return min(missing, limit, budget)",
        "return min(missing, budget)",
    ),
    Mutant(
        "one request too many",
        "base.py",
        "self.num_running < self.config.max_num_seqs",
        "self.num_running <= self.config.max_num_seqs",
    ),
    Mutant(
        "positions restart at 0 in a chunk",
        "oracle.py",
        "for position in range(request.num_computed_tokens, request.num_computed_tokens + n):",
        "for position in range(n):",
    ),
    Mutant(
        "context length from pages",
        "oracle.py",
        "found = self.read(request.block_ids)[:length]",
        "found = self.read(request.block_ids)",
    ),
    Mutant(
        "a leap one step too far",
        "leap.py",
        "for r in decoding) - 1\n",
        "for r in decoding)\n",
    ),
    Mutant(
        "a leap over a waiting request",
        "leap.py",
        "or scheduler._may_begin(budget)",
        "",
    ),
    Mutant(
        "a leap forgets to register full blocks",
        "leap.py",
        "            blocks.register(request, 1)\n",
        "",
    ),
    Mutant(
        "the stale entry of the priority queue leads",
        "queues.py",
        "        while not self._is_member(self._heap[0]):\n            heappop(self._heap)\n",
        "",
    ),
]
