# %% [markdown] name="title" covers=["C4", "C7"]
# # 03 · The KV cache: what a request holds
#
# You will compute what a token leaves behind, step a real scheduler and watch blocks fill, share and
# come free, and write the attention that reads them. About 50 minutes. No GPU needed.
#
# **Answer this first**, on paper or aloud:
#
# > A colleague sets `max_num_seqs` to 256 and says: "now 256 requests run at once." What else do you
# > have to know before you agree, and what happens if the colleague is wrong?

# %% [markdown] name="kept"
# ## What a token leaves behind
#
# Attention looks back. For every earlier token it needs that token's key and value, in every layer. They
# never change, so they are computed once and kept: the **KV cache**.
#
# ```text
#   one token     layer 1   [K K K] [V V V]      one K and one V for each KV head,
#                 layer 2   [K K K] [V V V]      each head_dim values long
#                 ...
# ```
#
# Write the number of bytes. Query heads are not in it: several of them share one KV head.

# %% name="setup"
import random

import torch

from llmlab.check import check, current_student, find_item
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.labs.own_attention import attention_from, check_paged_decode
from llmlab.labs.pace import pick
from llmlab.perf.cost import kv_bytes_per_token, weight_bytes
from llmlab.perf.hardware import load_hardware
from llmlab.perf.models import load_model_config
from llmlab.sched import SamplingParams
from llmlab.viz.exercise import attempt, print_prompt
from llmlab.viz.figures.block_map import show_blocks
from llmlab.viz.panels.block_panel import BlockPanel
from llmlab.viz.panels.worksheet_panel import WorksheetPanel


# %% name="kv_exercise" covers=["C4", "C7"]
def kv_bytes(layers: int, kv_heads: int, head_dim: int, bytes_per_value: float) -> float:
    """Bytes of KV cache that one token keeps."""
    ### BEGIN SOLUTION
    return 2 * layers * kv_heads * head_dim * bytes_per_value
    ### END SOLUTION


# %% name="kv_try" covers=["C4", "C7"]
names = ["smollm2-135m", "mistral-7b", "llama-3.1-8b", "llama-3.1-70b"]
configs = {name: load_model_config(name) for name in names}
per_token = attempt(
    "kv_bytes",
    lambda: {
        n: kv_bytes(c.num_hidden_layers, c.num_key_value_heads, c.head_dim, 2)
        for n, c in configs.items()
    },
    instead=lambda: {n: kv_bytes_per_token(c, "bf16") for n, c in configs.items()},
)
for name in names:
    print(f"{name:<14} {per_token[name] / 1024:6.1f} KiB per token, 2 bytes a value")

# %% [markdown] name="kv_look"
# Now the same against a cache that exists. This engine allocates a real pool, a small one; `measured` is
# the size of its tensors over the tokens they can hold.

# %% name="kv_real" covers=["C7"]
model = load_model(pick("smollm2-135m", "tiny"))
engine = Engine(model, EngineConfig(num_blocks=16, block_size=4, max_model_len=64))
pool = engine.runner.kv
measured = (pool.k.nbytes + pool.v.nbytes) / (16 * 4)
shape = model.config
computed = attempt(
    "kv_bytes",
    lambda: kv_bytes(
        shape.num_hidden_layers,
        shape.num_key_value_heads,
        shape.head_dim,
        pool.k.element_size(),
    ),
    instead=lambda: pool.bytes_per_token,
)
print(f"computed {computed:.0f} bytes, measured {measured:.0f} bytes")

# %% name="kv_proof" tags=["solution-only"] covers=["C4", "C7"]
assert computed == measured
assert all(per_token[n] == kv_bytes_per_token(c, "bf16") for n, c in configs.items())

# %% [markdown] name="fit" covers=["C4"]
# ## How many fit?
#
# The weights come first; what is left is for KV. Here one tenth of the device's memory is left for
# everything else (an assumption: change `usable`).

# %% name="fit_run" covers=["C4"]
device, usable = load_hardware("h100-sxm"), 0.9
free = usable * device.memory - weight_bytes(configs["llama-3.1-8b"], "bf16")
print(f"llama-3.1-8b on {device.title}: {free / 1e9:.1f} GB left for KV (computed, not measured)")
for context in (1024, 4096, 16384, 65536):
    fit = int(free // (per_token["llama-3.1-8b"] * context))
    print(f"{context:6d} tokens each: {fit:4d} requests fit")

# %% [markdown] name="fit_explain" covers=["C4"]
# The count falls as contexts grow. So "at most 256 requests" is a ceiling, not a promise: `max_num_seqs`
# says how many the scheduler *tries* to run, the pool says how many *can*. Choose concurrency against
# memory and against the latency you have to keep; the smaller one holds.

# %% [markdown] name="blocks" covers=["C4"]
# ## Blocks
#
# How long will an answer be? Nobody knows. Reserve the longest for everyone, and whatever the shorter
# ones do not write stays empty. So memory is cut into **blocks** of a few tokens, and a request takes the
# next one when its last is full. Its **block table** says where its tokens lie; they need not lie side
# by side.
#
# ```text
#   request A   position   0 1 2 3   4 5 6 7   8 9 . .
#               table     [   5   ] [   2   ] [   7   ]
#
#   position p lies in block table[p // B], at slot p % B
# ```
#
# Only the last block of a request has empty slots. That is all that is wasted.
#
# ## Predict
#
# The panel below drives the engine's real scheduler; no model runs, so the tokens are placeholders,
# but every block is given out exactly as in the engine. Blocks hold 4 tokens here. Before you press anything:
#
# 1. A prompt of 14 tokens: how many blocks, and how many empty slots?
# 2. After how many more tokens is the next block taken?
# 3. Two requests begin with the same 8 tokens, prefix cache on: how many blocks do they share?
#
# ## Run
#
# *Add request*, then *Step*, again and again. Add a second one while the first runs. Abort one. Then
# start again with the prefix cache switched on.

# %% name="panel" covers=["C4"]
panel = BlockPanel()
panel.add(14, 12, 8)
panel

# %% [markdown] name="share_intro" covers=["C4"]
# ## Look: fill, share, free
#
# The same in code. `add(prompt, output, common)`: the first `common` tokens are the same in all
# requests, as a system prompt is.

# %% name="share" covers=["C4"]
for prefix_cache in (False, True):
    demo = BlockPanel(num_blocks=24, prefix_caching=prefix_cache)
    demo.add(14, 12, 8)
    demo.step()
    demo.add(14, 12, 8)
    print(demo.step())
    print(demo.text(), end="\n\n")

# %% name="free" covers=["C4"]
print(demo.abort("A"))
print(demo.step(20))
print(demo.text())

# %% [markdown] name="share_explain" covers=["C4"]
# ## Explain
#
# - With the cache on, B *finds* two full blocks that A wrote. They stand in both tables and count once.
#   Only full blocks can be found, and only from the first token on: a key covers all that came before.
# - When A ends, a shared block stays: B still holds it. It is free when its **last** holder lets go.
# - ◇ blocks are free *and* can still be found. They cost nobody anything: whoever needs a block gets one
#   that nobody could find again, as long as there is one. Only then does a ◇ go, the one unused for longest.
#
# ## When the pool is too small
#
# Two requests fit when they begin, and both grow. Predict what the scheduler does at the moment when
# one needs a block and none is free. Then look.

# %% name="preempt" covers=["C4"]
work = {}
for blocks in (24, 8):
    small = BlockPanel(num_blocks=blocks)
    small.add(10, 12)
    small.add(10, 12)
    while small.scheduler.has_work:
        said = small.step()
        if "preempted" in said:
            print(f"{blocks} blocks: {said}")
    work[blocks] = small.tokens_computed
    print(f"{blocks} blocks: {small.steps} steps, {small.tokens_computed} tokens computed")
print(f"computed twice: {work[8] - work[24]} tokens")

# %% [markdown] name="preempt_explain" covers=["C4"]
# The last one admitted is **preempted**: its blocks go to the others, it returns to the front of the
# queue, and later its prompt *and* its output so far are computed again. No token it has sent is lost, but its reader
# sees a gap, and the machine does work twice. A full pool does not crash a server. It makes it slow, just when it
# is busiest. `max_num_seqs` never showed you that; blocks in use and preemptions do.
#
# And on the real engine? The same map, read from the engine's own scheduler:

# %% name="real_map" covers=["C4"]
for name, size in (("chat", 6), ("document", 19)):
    ids = [(31 * i + size) % 250 for i in range(size)]
    engine.add(ids, SamplingParams(max_tokens=8, ignore_eos=True), request_id=name)
for _ in range(4):
    engine.step()
view = show_blocks(engine.scheduler)
for name in ("chat", "document"):
    engine.abort(name)
engine.step()
print("KV blocks in use after the abort:", engine.scheduler.num_blocks_used)
view

# %% [markdown] name="paged" covers=["C4"]
# ## Write it: attention over blocks
#
# A decode step has one query a request. Its keys lie where the block table says.
#
# ```text
#   q            [R, Hq, D]       one query for each of R requests
#   k_cache      [N, B, Hkv, D]   keys of one layer: N blocks of B slots
#   v_cache      [N, B, Hkv, D]   values, likewise
#   block_table  [R, M]           row r: blocks of request r in order, then zeros
#   context_len  [R]              tokens of request r, this step's included
#   returns      [R, Hq, D]
# ```
#
# For each request and query head $h$, over positions $0 \dots c-1$ with $c$ = `context_len[r]`:
#
# $$\text{out} = \text{softmax}\!\left(\frac{q_h K^\top}{\sqrt D}\right) V$$
#
# - Query heads share in groups: head $h$ reads KV head $h \,//\, (H_q / H_{kv})$.
# - A slot that was never written may hold NaN, and $0 \cdot \text{NaN}$ is NaN. Do not read beyond $c$.
# - A loop over requests is fine. Clear first; lab 10 makes it fast.


# %% name="paged_exercise" covers=["C4"]
def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_len: torch.Tensor,
) -> torch.Tensor:
    """Attention of one query per request over its own blocks; shapes as above."""
    ### BEGIN SOLUTION
    block_size, kv_heads = k_cache.shape[1:3]
    group = q.shape[1] // kv_heads
    out = torch.empty_like(q)
    for r, context in enumerate(context_len.tolist()):
        blocks = block_table[r, : -(-context // block_size)].long()
        k = k_cache[blocks].flatten(0, 1)[:context]  # [C, Hkv, D]
        v = v_cache[blocks].flatten(0, 1)[:context]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # [C, Hq, D]
        scores = torch.einsum("hd,chd->hc", q[r], k) / q.shape[2] ** 0.5
        out[r] = torch.einsum("hc,chd->hd", scores.softmax(dim=-1), v)
    return out
    ### END SOLUTION


# %% [markdown] name="paged_check_intro"
# Checked against dense attention in double precision, on ragged batches: blocks in no order, contexts
# from 1 to 40, NaN wherever nothing was written, some blocks shared.

# %% name="paged_check" covers=["C4"]
check_paged_decode(paged_decode)

# %% [markdown] name="paged_engine_intro"
# ## Your attention in the engine
#
# Now every decode of a real engine runs through your function (prompts stay with the library). Where
# the keys lie must never change what the model says: the greedy tokens have to be the same. A tiny model
# with random weights will do; it says nothing sensible, but it notices every wrong key.

# %% name="paged_engine" covers=["C4"]
tiny = load_model("tiny")


def serve(attention):
    """Greedy answers to four prompts of unequal length."""
    config = EngineConfig(block_size=4, num_blocks=64, max_num_batched_tokens=32)
    engine = Engine(tiny, config, attention=attention)
    rng, tokens = random.Random(3), {}
    for number, size in enumerate((3, 30, 1, 11)):
        ids = [rng.randrange(250) for _ in range(size)]
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        engine.add(ids, params, request_id=f"r{number}")
    while engine.has_work:
        for out in engine.step():
            tokens.setdefault(out.request_id, []).extend(out.token_ids)
    return tokens


library = serve("torch")
mine = attempt(
    "paged_decode",
    lambda: serve(attention_from(paged_decode)),
    instead=lambda: serve("torch"),
)
same = sum(mine[name] == library[name] for name in library)
print(f"{same} of {len(library)} answers are the library's, token for token")

# %% name="paged_proof" tags=["solution-only"] covers=["C4"]
assert check_paged_decode(paged_decode).state == "correct"
assert serve(attention_from(paged_decode)) == library
cut = attention_from(lambda q, k, v, table, n: paged_decode(q, k, v, table, (n - 2).clamp(min=1)))
assert serve(cut) != library

# %% [markdown] name="move" covers=["C7"]
# ## The cache on the move
#
# Some deployments prefill on one device and decode on another (**disaggregation**). Then a prompt's KV has to
# be sent: bytes per token × tokens, over the link. At best, for the models of above and a link of 50 GB/s:

# %% name="move_run" covers=["C7"]
link = 50e9  # bytes/s
for name in names:
    size = per_token[name] * 4096
    print(
        f"{name:<14} 4,096 tokens: {size / 2**20:7.1f} MiB, {1e3 * size / link:6.2f} ms (computed)"
    )

# %% [markdown] name="move_explain" covers=["C7"]
# What it buys: a long prefill no longer stalls the decodes of others (lab 08 measures it). What it does not:
# in their pool, decodes still compete for bandwidth and for KV blocks, and both pools still batch. Two
# processes on *one* GPU share its bandwidth and are not isolated at all. And where one pool meets both
# latency targets, the transfer is only a cost.
#
# ## Worksheet
#
# What fits, and what has to move: numbers you can work out before you rent a GPU.

# %% name="sheet_panel" covers=["C4", "C7"]
worksheet = WorksheetPanel("c4", "c7")
worksheet

# %% [markdown] name="sheet_code_intro"
# Two of them in code, if you like that better:

# %% name="c4_requests" covers=["C4"]
item = find_item("C4.requests")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: requests = ...
requests = numbers["free"] * 2**20 // numbers["kib"] // numbers["context"]
### END SOLUTION
check("C4.requests", requests)

# %% name="c7_token" covers=["C7"]
item = find_item("C7.kv-per-token")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: token_bytes = ...
token_bytes = kv_bytes(*(numbers[n] for n in ("layers", "kv_heads", "head_dim", "bytes")))
### END SOLUTION
check("C7.kv-per-token", token_bytes)

# %% name="worked" tags=["solution-only"] covers=["C4", "C7"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for sheet in ("c4", "c7"):
    for item in load_worksheet(sheet):
        result = check(item.id, solution(item.id, current_student()))
        print(f"{result.glyph} {item.id:<22} = {item.spec.answer}")
        assert result.state == "correct", item.id

# %% [markdown] name="wrap" covers=["C4", "C7"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > How much memory is left after the weights, how many bytes a token keeps, and how long contexts
# > get. The pool bounds the batch, not the ceiling. If it is too small, requests wait or are preempted and
# > computed again: nothing crashes, latency does.
#
# The full answer adds three things. Blocks waste only the rest of each last one, so the pool is filled by what
# requests *have*, not by what they might need. Equal beginnings can be held once. And even if the memory
# is there, a larger batch makes each step longer: check concurrency against the latency target too.
#
# **Interview questions this lab prepares**
#
# - How many bytes does a token keep, and why are the query heads not in the formula?
# - What does a block table buy? What does a kernel have to do in return?
# - A dashboard shows preemptions. What do users feel, and which knobs would you turn?
# - When is moving the KV to another device not worth it?
#
# Next: lab 04 fills the batch.
