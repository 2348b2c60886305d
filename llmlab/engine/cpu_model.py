"""The forward pass of `model.py` with compiled parts: nine calls a layer at any batch size.

    norm(+residual)  qkv  norm+rope+write  attention  o  norm(+residual)  gate_up  silu*up  down

The same weights, the same order, the same answer as `Model.forward`; what differs is how many
operations it takes and how often a tensor travels through memory. Buffers and the parts'
arguments are made once and serve every step that fits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from llmlab.engine.attention import attend_chunk as torch_chunk
from llmlab.engine.attention import chunk_of
from llmlab.engine.batch import Batch
from llmlab.engine.half_linear import HalfLinear
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.model import Linear, Model
from llmlab.kernels.cpu_code import code
from llmlab.kernels.cpu_team import Part, most_threads
from llmlab.kernels.cpu_width import COLUMNS, MOST_ROWS

# Tokens from which on waking the other threads for a small part is worth it.
TOGETHER = 4


def into(linear: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """linear(x), in `out` if this kind of linear can write there."""
    return linear.into(x, out) if isinstance(linear, HalfLinear) else linear(x)


class CpuForward:
    """A forward pass over one pool in float32 or 16 bits, on the CPU, computed in float32.

    positions: how many the rotary table holds, which is also the longest context.
    """

    def __init__(self, model: Model, kv: KVCache, positions: int) -> None:
        c = model.config
        self.model, self.kv = model, kv
        heads, kv_heads, dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.cos, self.sin = model.rotary(torch.arange(positions))  # each [L, 1, D]
        self.pools = [
            tuple(pool.data_ptr() for pool in kv.layer(i)) for i in range(len(model.layers))
        ]
        self.eps = torch.tensor([c.rms_norm_eps])
        self.scores = torch.empty(most_threads(), heads, positions)
        self.head_norms = [
            None
            if layer.q_norm is None or layer.k_norm is None
            else torch.stack((layer.q_norm, layer.k_norm))
            for layer in model.layers
        ]
        self.norm = Part(code("cpu_parts", "add_norm"), sizes=3, addresses=6)
        self.norm.sizes[1] = c.hidden_size
        self.norm.addresses[1] = self.eps.data_ptr()
        half = int(kv.k.dtype == torch.float16)
        self.rope = Part(code("cpu_parts", "rope_write_for", half), sizes=7, addresses=8)
        self.rope.sizes[1:5] = [heads, kv_heads, dim, int(c.qk_norm)]
        self.rope.addresses[1] = self.eps.data_ptr()
        self.rope.addresses[5:7] = [self.cos.data_ptr(), self.sin.data_ptr()]
        self.attend = Part(
            code("cpu_attention", "attend_for", dim, heads // kv_heads, half), sizes=10, addresses=6
        )
        stride = (heads + 2 * kv_heads) * dim
        self.attend.sizes[:6] = [0, kv_heads, kv.k.shape[2], 0, stride, positions]
        self.attend.addresses[5] = self.scores.data_ptr()
        self.silu = Part(code("cpu_parts", "silu_mul"), sizes=2, addresses=3)
        self.silu.sizes[1] = c.intermediate_size
        # Products over a head's values need whole panels; other head sizes take torch's way.
        self.has_chunks = dim % COLUMNS == 0
        if self.has_chunks:
            longest = -(-positions // COLUMNS) * COLUMNS
            self.keys, self.values = (torch.empty(kv_heads, longest, dim) for _ in range(2))
            self.rows = torch.empty(most_threads(), MOST_ROWS, longest)
            self.lay_out = Part(code("cpu_chunk", "lay_out_for", half), sizes=15, addresses=5)
            self.attend_chunk = Part(code("cpu_chunk", "attend_chunk"), like=self.lay_out)
            kept = [self.keys.data_ptr(), self.values.data_ptr(), self.rows.data_ptr()]
            group = heads // kv_heads
            self.lay_out.sizes[2:8] = [kv.k.shape[2], kv_heads, group, dim, stride, longest]
            self.lay_out.sizes[10:13] = self.lay_out.addresses[2:5] = kept
        self.capacity = 0
        self._grow(64)

    def _grow(self, tokens: int) -> None:
        """Buffers for steps of so many tokens; untouched ones cost no memory."""
        c = self.model.config
        self.capacity = tokens
        self.residual = torch.empty(tokens, c.hidden_size)
        self.x = torch.empty(tokens, c.hidden_size)
        self.heads = torch.empty(tokens, c.num_attention_heads * c.head_dim)
        self.qkv = torch.empty(
            tokens, (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim
        )
        self.both = torch.empty(tokens, 2 * c.intermediate_size)
        self.delta = torch.empty(tokens, c.hidden_size)
        self.hidden = torch.empty(tokens, c.intermediate_size)
        self.norm.addresses[2] = self.residual.data_ptr()
        self.norm.addresses[5] = self.x.data_ptr()
        self.attend.sizes[9] = self.attend.addresses[4] = self.heads.data_ptr()
        self.silu.addresses[2] = self.hidden.data_ptr()

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Write this batch's keys and values, return logits [S, V] of `batch.sample_rows`."""
        tokens = batch.num_tokens
        if tokens > self.capacity:
            self._grow(max(tokens, 2 * self.capacity))
        together = tokens >= TOGETHER
        x, heads, hidden = self.x[:tokens], self.heads[:tokens], self.hidden[:tokens]
        qkv_out, both_out, out = self.qkv[:tokens], self.both[:tokens], self.delta[:tokens]
        chunks = self._enter(batch)
        delta: torch.Tensor | None = None
        for index, layer in enumerate(self.model.layers):
            self._add_norm(delta, layer.input_norm, together)
            qkv = into(layer.qkv, x, qkv_out)  # [T, (Hq + 2 Hkv) D]
            self._attention(index, qkv, batch, chunks, together)
            delta = into(layer.output, heads, out)
            self._add_norm(delta, layer.mlp_norm, together)
            both = into(layer.gate_up, x, both_out)  # [T, 2 I]
            self.silu.addresses[1] = both.data_ptr()
            self.silu.run(together)
            delta = into(layer.down, hidden, out)
        self._add_norm(delta, self.model.norm, together)
        return self.model.head(x[batch.sample_rows])

    def _enter(self, batch: Batch) -> list[tuple[int, int]]:
        """Embed the tokens, set what all layers share; requests with n > 1, and their starts."""
        tokens = batch.num_tokens
        self.residual[:tokens] = F.embedding(batch.input_ids, self.model.embedding)
        self.norm.sizes[0] = self.rope.sizes[0] = self.silu.sizes[0] = tokens
        self.rope.addresses[3:5] = [batch.positions.data_ptr(), batch.slots.data_ptr()]
        starts = [0]
        for n in batch.query_lens:
            starts.append(starts[-1] + n)
        decodes = [r for r, n in enumerate(batch.query_lens) if n == 1]
        self.decodes = torch.tensor([decodes, [starts[r] for r in decodes]])  # [2, R']
        self.attend.sizes[0], self.attend.sizes[3] = len(decodes), batch.block_table.shape[1]
        self.attend.addresses[1:4] = [
            batch.block_table.data_ptr(),
            batch.context_len.data_ptr(),
            self.decodes.data_ptr(),
        ]
        return [(r, starts[r]) for r, n in enumerate(batch.query_lens) if n > 1]

    def _add_norm(self, delta: torch.Tensor | None, weight: torch.Tensor, together: bool) -> None:
        """residual += delta; x = RMSNorm(residual) * weight."""
        part = self.norm
        part.sizes[2] = delta is not None
        part.addresses[3] = 0 if delta is None else delta.data_ptr()
        part.addresses[4] = weight.data_ptr()
        part.run(together)

    def _attention(
        self,
        index: int,
        qkv: torch.Tensor,
        batch: Batch,
        chunks: list[tuple[int, int]],
        together: bool,
    ) -> None:
        """From qkv [T, (Hq + 2 Hkv) D] to `self.heads` [T, Hq D]; keys and values are written."""
        where = self.pools[index]
        norms = self.head_norms[index]
        self.rope.addresses[2] = qkv.data_ptr()
        self.rope.sizes[5:7] = [*where]
        self.rope.addresses[7] = 0 if norms is None else norms.data_ptr()
        self.rope.run(together)
        if self.attend.sizes[0]:
            self.attend.sizes[6:9] = [qkv.data_ptr(), *where]
            self.attend.run(True)
        for r, start in chunks:
            if self.has_chunks:
                self._chunk(r, start, qkv, batch, where)
            else:
                self._torch_chunk(index, r, start, qkv, batch)

    def _chunk(
        self, r: int, start: int, qkv: torch.Tensor, batch: Batch, where: tuple[int, ...]
    ) -> None:
        """Request r, whose queries begin at token `start`."""
        part = self.lay_out
        part.sizes[0:2] = [batch.query_lens[r], batch.context_lens[r]]
        part.sizes[8:10] = [qkv[start].data_ptr(), self.heads[start].data_ptr()]
        part.sizes[13:15] = [*where]
        part.addresses[1] = batch.block_table[r].data_ptr()
        part.run(True)
        self.attend_chunk.run(True)

    def _torch_chunk(self, index: int, r: int, start: int, qkv: torch.Tensor, batch: Batch) -> None:
        c = self.model.config
        chunk = batch.memo.get(f"chunk {r}")
        if chunk is None:
            chunk = chunk_of(batch, r, start, self.kv.k.shape[2])
            batch.memo[f"chunk {r}"] = chunk
        rows = slice(start, start + chunk.n)
        q = qkv.view(len(qkv), -1, c.head_dim)[rows, : c.num_attention_heads]  # [n, Hq, D]
        k, v = (pool.flatten(0, 1)[chunk.slots] for pool in self.kv.layer(index))  # [C, Hkv, D]
        out = self.heads.view(self.capacity, -1, c.head_dim)
        out[rows] = torch_chunk(q, k, v, chunk.mask)
