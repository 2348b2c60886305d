"""Fake devices that do nothing until their tokens are asked for: work waits in a queue, in order.

What the host does with a token before it was read back cannot work here, since there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

import torch

from llmlab.config import ModelConfig
from llmlab.engine.cuda_sampler import Sampled, sample_on_device
from llmlab.engine.runner import Runner
from llmlab.engine.tokenizer import ByteTokenizer
from llmlab.sched.oracle import EMPTY, next_token

VOCAB = 97


def sample_batch(logits, rows):
    """Tokens of the batched sampler, read back."""
    return Sampled(sample_on_device(logits, rows)).read()


class Queue:
    """The device's queue. `depths`: steps launched but not read back, at each read-back."""

    def __init__(self):
        self.waiting: deque[Callable[[], None]] = deque()
        self.launched = self.landed = 0
        self.depths: list[int] = []

    def run_until(self, done: Callable[[], bool]) -> None:
        self.depths.append(self.launched - self.landed)
        self.landed += 1
        while not done():
            self.waiting.popleft()()


class Later:
    """A tensor that is not there yet."""

    def __init__(self, queue: Queue):
        self.queue = queue
        self.value = None

    @property
    def tokens(self):
        return self

    def __getitem__(self, row):  # of logits, once the tokens were read back
        return self.value[row]

    def read(self):
        self.queue.run_until(lambda: self.value is not None)
        return self.check(self.value)

    def check(self, value):
        return value


class LaterTokens(Later):
    def check(self, value):
        return value.read()


class LazyRunner(Runner):
    """The CPU runner behind a queue."""

    def __init__(self, *args):
        super().__init__(*args)
        self.queue = Queue()

    def feed(self, batch, pairs, tokens):
        real = super().feed
        self.queue.waiting.append(lambda: real(batch, pairs, tokens.value.tokens))

    def forward(self, batch):
        real, logits = super().forward, Later(self.queue)
        self.queue.waiting.append(lambda: setattr(logits, "value", real(batch)))
        return logits

    def launch_sample(self, logits, rows):
        real, tokens = super().launch_sample, LaterTokens(self.queue)
        self.queue.waiting.append(lambda: setattr(tokens, "value", real(logits.value, rows)))
        self.queue.launched += 1
        return tokens


def history_model(limit: int = 64):
    """A model for `HistoryRunner`: everything of a model but the model."""
    config = ModelConfig("history", 1, 1, 1, 1, 1, 1, VOCAB, limit)
    tokenizer = ByteTokenizer()
    tokenizer.eos_token_id = None
    dtype = torch.float32
    return SimpleNamespace(
        config=config, tokenizer=tokenizer, device="cpu", dtype=dtype, kv_dtype=dtype
    )


class HistoryRunner:
    """The torch-free oracle of `sched.oracle` as a device: it sees slots and tables alone.

    Slots hold (token, position). A step writes its tokens, then reads every context back through
    the block table; the next token is a hash of what it finds there, in whatever order the host
    has meanwhile changed its mind.
    """

    def __init__(self, model, config, attention):
        self.size = config.block_size
        self.slots = [EMPTY] * (config.num_blocks * config.block_size)
        self.queue = Queue()

    def build(self, plan):
        rows = [
            (list(r.block_ids), r.num_computed_tokens, n, r.num_computed_tokens + n == r.num_tokens)
            for r, n in plan.scheduled
        ]
        ids = [r.token_at(r.num_computed_tokens + i) for r, n in plan.scheduled for i in range(n)]
        return SimpleNamespace(rows=rows, ids=ids)

    def feed(self, batch, pairs, tokens):
        def put():
            for row, source in pairs:
                assert batch.ids[row] == -1, "a known token is overwritten"
                batch.ids[row] = tokens.value[source]

        self.queue.waiting.append(put)

    def forward(self, batch):
        self.queue.waiting.append(lambda: self.run(batch))
        return batch

    def timer(self):
        return None

    def launch_sample(self, batch, rows):
        tokens = Later(self.queue)
        self.queue.waiting.append(lambda: setattr(tokens, "value", batch.tokens))
        self.queue.launched += 1
        return tokens

    def run(self, batch):
        assert min(batch.ids) >= 0, "a token on its way was not fed"
        ids = iter(batch.ids)
        for table, first, n, _ in batch.rows:
            for position in range(first, first + n):
                slot = table[position // self.size] * self.size + position % self.size
                self.slots[slot] = (next(ids), position)
        batch.tokens = [
            self.next_of(table, first + n) for table, first, n, sampled in batch.rows if sampled
        ]

    def next_of(self, table, length):
        found = [s for b in table for s in self.slots[b * self.size : (b + 1) * self.size]]
        tokens, positions = zip(*found[:length], strict=True)
        assert positions == tuple(range(length)), "somebody else wrote there"
        return next_token(tokens, VOCAB)
