# %% [markdown] name="title" covers=["A2", "C3"]
# # 10 · Triton: the kernel that reads the cache
#
# You will write the two kernels that touch the KV cache, one that fills it and one that reads it, serve a
# request with them, count every byte they load, and read what a compiler makes of them. About 60
# minutes. No GPU needed; with one, the same kernels run on it.
#
# **Answer this first**, on paper or aloud:
#
# > A colleague shows you a paged decode attention kernel. The profiler says 2 % of the GPU's FLOP/s, and the
# > colleague asks how to keep the tensor cores busy. What do you ask for instead, and when is the kernel done?

# %% [markdown] name="ten_lines"
# ## A kernel in ten lines
#
# Triton's unit is a **program**: a function that runs many times at once and asks which one it is. It gets
# **pointers**, computes a small tile of addresses, loads, computes, stores. Three things to look for below:
#
# - `tl.program_id(0)`: which program am I? That decides which part of the data is mine.
# - `x + i`: a pointer plus a *vector* of offsets is a vector of addresses. Nobody checks them.
# - `mask`: lanes that must not touch memory. Tiles have a fixed size, data does not.

# %% name="setup"
import random

import torch

from llmlab.check import check, current_student
from llmlab.check.choose import as_item
from llmlab.check.library import find_question
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.engine.attention import paged_attention
from llmlab.engine.runner import Runner, resolve_attention
from llmlab.labs.bandwidth import (
    Shape,
    copy_rate,
    decode_rates,
    device_name,
    must_move,
    show_rates,
)
from llmlab.labs.kernel_checks import check_decode, check_kv_write
from llmlab.labs.own_aot import compile_decode, show_compiled
from llmlab.labs.own_kernels import (
    attention_of,
    count_loads,
    decode_attention,
    library_attention,
    runner_with,
    show_loads,
)
from llmlab.labs.own_softmax import check_fold, fold_all, fold_tile
from llmlab.labs.own_triton import available, on_gpu, tl, triton, watching, where
from llmlab.labs.pace import pick
from llmlab.sched import SamplingParams
from llmlab.viz.exercise import attempt, print_prompt
from llmlab.viz.panels import QuizPanel
from llmlab.viz.panels.grid_panel import GridPanel

print(where())


# %% name="add"
@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # the places that are mine
    inside = i < n
    a = tl.load(x + i, mask=inside, other=0.0)
    b = tl.load(y + i, mask=inside, other=0.0)
    tl.store(out + i, a + b, mask=inside)


# %% [markdown] name="add_predict"
# **Predict.** Ten values, tiles of four: how many programs, and what does the last one do with its four
# lanes? The square brackets at the launch hold the **grid**, the number of programs. `watching()` runs
# the launch in Triton's interpreter on the CPU, one program after the other, and writes down what each
# one loads and stores.

# %% name="add_run"
x, y, out = torch.arange(10.0), torch.ones(10), torch.zeros(10)
with watching() as seen:
    add_kernel[(3,)](x, y, out, 10, BLOCK=4)
print(out.tolist())
seen

# %% [markdown] name="add_break_intro"
# Now tell the kernel that there are 12 values. On a GPU it would read, and write, whatever lies behind. The
# watched interpreter stops it:

# %% name="add_break"
try:
    with watching():
        add_kernel[(3,)](x, y, out, 12, BLOCK=4)
except Exception as error:
    print(error.__cause__ or error)

# %% [markdown] name="write_intro"
# ## Write 1: into the cache
#
# Every step computes a key and a value for each of its tokens, in each layer, and has to put them where the
# block table wants them. The scheduler has worked that out already: a **slot** for each row.
#
# ```text
#   slots     [  9        -1        4  ]        one a row; -1: a row of padding
#                |         |        |
#   k row        0         1        2           ROW = Hkv * D values each
#                |      (nothing)   |
#   k_cache   ........ [ 4 ] ........ [ 9 ]     slot s begins at value s * ROW
# ```
#
# ```text
#   k, v              pointers to [T, Hkv, D], contiguous
#   k_cache, v_cache  pointers to [N, B, Hkv, D], contiguous: slot s = block * B + offset
#   slots             pointer to T whole numbers (int64)
#   ROW               Hkv * D, not always a power of two
#   BLOCK             ROW rounded up to one: the length of tl.arange(0, BLOCK)
#   grid              (T,): one program a row
# ```
#
# Two things decide: lanes beyond `ROW` belong to someone else, and for slot -1 nothing may be stored.


# %% name="write_exercise" covers=["A2"]
@triton.jit
def kv_write_kernel(k, v, k_cache, v_cache, slots, ROW: tl.constexpr, BLOCK: tl.constexpr):
    """Row t of k and v goes to slot slots[t]; a slot of -1 gets nothing."""
    t = tl.program_id(0)
    ### BEGIN SOLUTION
    slot = tl.load(slots + t)
    lane = tl.arange(0, BLOCK)
    mine = (lane < ROW) & (slot >= 0)
    key = tl.load(k + t * ROW + lane, mask=mine)
    value = tl.load(v + t * ROW + lane, mask=mine)
    tl.store(k_cache + slot * ROW + lane, key, mask=mine)
    tl.store(v_cache + slot * ROW + lane, value, mask=mine)
    ### END SOLUTION


# %% name="write_check" covers=["A2"]
check_kv_write(kv_write_kernel)

# %% [markdown] name="softmax_intro"
# ## One tile at a time: online softmax
#
# The second kernel reads. Its softmax runs over *all* keys of a request, but a program holds only a tile of
# them. So it keeps three running values and folds each tile into them:
#
# ```text
#   m       the largest score so far                 starts at -inf
#   total   sum of exp(score - m) so far             starts at 0
#   acc     sum of exp(score - m) * value so far     starts at 0, [D]
#
#   the answer, when all tiles are folded:  acc / total
# ```
#
# The difficulty: a later tile may bring a larger score. Then $m$ rises, and what was summed before was
# measured against too small a maximum. Since $e^{s - m_{new}} = e^{s - m_{old}} \cdot e^{m_{old} - m_{new}}$, one
# factor puts both sums right.
#
# Write it in torch first: `score` is [N], `v` is [N, D].


# %% name="fold_exercise" covers=["A2"]
def fold(m, total, acc, score, v):
    """Fold one tile into (m, total, acc); returns the new three."""
    ### BEGIN SOLUTION
    m_new = torch.maximum(m, score.max())
    shrink = torch.exp(m - m_new)
    p = torch.exp(score - m_new)
    return m_new, total * shrink + p.sum(), acc * shrink + p @ v
    ### END SOLUTION


# %% name="fold_check" covers=["A2"]
check_fold(fold)

# %% [markdown] name="fold_look"
# **Look.** Scores 0 to 5 and 90 to 95, tiles of three. Without taking the maximum off, exp(90) is more than
# float32 can hold (its largest is about 3.4e38). With it, the tiles may come as they like:

# %% name="fold_run" covers=["A2"]
scores = torch.cat([torch.arange(6.0), torch.arange(90.0, 96.0)])
values = torch.arange(12.0)[:, None]


def in_tiles(one):
    """The answer for tiles of 1, 3 and 12 keys."""
    return [float(fold_all(one, scores, values, tile)[0]) for tile in (1, 3, 12)]


print("plain exp:        ", float((scores.exp() @ values / scores.exp().sum())[0]))
found = attempt("fold", lambda: in_tiles(fold), instead=lambda: in_tiles(fold_tile))
print("tiles of 1, 3, 12:", *(f"{value:.4f}" for value in found))

# %% [markdown] name="grid" covers=["A2"]
# ## The grid walks the block table
#
# Who folds what? Here one program owns one **request** and one **query head**; it walks that request's
# keys, tile by tile. Position $p$ lies in block `block_table[r, p // PAGE]`, at slot `p % PAGE` of it.
# If one request has a long context, it can be cut into **splits**, a program for each, whose results a second
# small kernel merges (our own kernel below has one split; the library's has more).
#
# **Predict**, for 23 tokens in blocks of 4, tiles of 8:
#
# 1. How many table entries does the program look up, and how many lanes does its last tile mask?
# 2. With 3 splits: which blocks does the second one read? Are they neighbours in the pool?
# 3. What changes if blocks hold 16 tokens: fewer entries, or fewer keys?
#
# Turn the knobs and see.

# %% name="grid_panel" covers=["A2"]
panel = GridPanel()
panel

# %% name="grid_text"
print(GridPanel(splits=3).text())

# %% [markdown] name="grid_explain" covers=["A2", "C3"]
# - The keys that are read do not depend on the page size or the splits: each key of the context, once per
#   head. Pages only say *where*. A larger page means fewer table entries and more empty slots at the end.
# - A tile need not be a page. A program asks the table for each of its positions; entries are small.
# - Splits make more programs, not less work. On a GPU with over a hundred processors, a batch of one request
#   with few heads leaves most of them idle; with a large batch the grid is full without splits.
#
# ## Write 2: paged decode
#
# ```text
#   q, out            pointers to [R, Hq, D], contiguous
#   k_cache, v_cache  pointers to [N, PAGE, Hkv, D], contiguous
#   block_table       pointer to [R, M] (int32): row r, blocks of request r in order
#   context_len       pointer to [R] (int32), each at least 1
#   scale             1 / sqrt(D)
#   HEADS, KV_HEADS   query head h reads KV head h // (HEADS // KV_HEADS)
#   D                 head dim, a power of two here
#   BLOCK_N           keys a tile, a power of two
#   grid              (R, Hq): one program a request and query head
# ```
#
# - Value $(slot, g, d)$ of a cache lies at `(slot * KV_HEADS + g) * D + d`, with
#   `slot = block * PAGE + p % PAGE`. A tile of keys is a [BLOCK_N, D] tile of pointers: one vector with
#   `[:, None]` plus one with `[None, :]`.
# - Slots that nobody wrote hold NaN, and $0 \cdot \text{NaN}$ is NaN. Mask the loads, give them `other=0.0`, **and** give
#   dead lanes a score of `float("-inf")`: `tl.where(live, ..., float("-inf"))`.
# - Cast to float32 right after each load: `.to(tl.float32)`. Sums over thousands of keys need it.
# - Block numbers as `.to(tl.int64)`: in a large pool the offset outgrows 32 bits.
# - Sums along an axis: `tl.sum(a, 1)`, `tl.max(a, 0)`. Your `fold` is the loop's body, with `tl` for `torch`.


# %% name="decode_exercise" covers=["A2", "C3"]
@triton.jit
def decode_kernel(
    q,
    k_cache,
    v_cache,
    out,
    block_table,
    context_len,
    M,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[r, head] = attention of q[r, head] over the context of request r."""
    r = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    query = tl.load(q + (r * HEADS + head) * D + d).to(tl.float32)
    context = tl.load(context_len + r)
    ### BEGIN SOLUTION
    kv_head = head // (HEADS // KV_HEADS)
    m = float("-inf")
    total = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for start in range(0, context, BLOCK_N):
        position = start + tl.arange(0, BLOCK_N)
        live = position < context
        entry = block_table + r * M + position // PAGE
        block = tl.load(entry, mask=live, other=0).to(tl.int64)
        row = (block * PAGE + position % PAGE) * KV_HEADS + kv_head
        at = row[:, None] * D + d[None, :]  # [BLOCK_N, D]
        k = tl.load(k_cache + at, mask=live[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_cache + at, mask=live[:, None], other=0.0).to(tl.float32)
        score = tl.where(live, tl.sum(query[None, :] * k, 1) * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 0))
        shrink = tl.exp(m - m_new)
        p = tl.exp(score - m_new)
        total = total * shrink + tl.sum(p, 0)
        acc = acc * shrink + tl.sum(p[:, None] * v, 0)
        m = m_new
    result = (acc / total).to(out.dtype.element_ty)
    tl.store(out + (r * HEADS + head) * D + d, result)
    ### END SOLUTION


# %% [markdown] name="decode_check_intro"
# Checked against dense attention in double precision: contexts of 1, at and around the ends of pages and
# tiles, one to three query heads per KV head, pages of 1 and of 5, large scores, float16, and NaN in every slot
# that no token owns.

# %% name="decode_check" covers=["A2", "C3"]
check_decode(decode_kernel)

# %% [markdown] name="serve_intro" covers=["A2"]
# ## Serve a request with them
#
# The engine takes its parts as arguments. Every key of every layer goes through your first kernel, every
# decode through your second (prompts of several tokens stay with the library). A tiny model with random
# weights says nothing sensible, but it notices each wrong key: the greedy tokens must be the same.

# %% name="serve" covers=["A2"]
device = "cuda" if on_gpu() else "cpu"
tiny = load_model("tiny", device=device)


def serve(attention, runner):
    """Greedy answers to three prompts of unequal length."""
    config = EngineConfig(block_size=4, num_blocks=64, max_num_batched_tokens=32)
    engine = Engine(tiny, config, attention=attention, runner=runner)
    rng, tokens = random.Random(3), {}
    for number, size in enumerate((3, 18, 1)):
        ids = [rng.randrange(250) for _ in range(size)]
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        engine.add(ids, params, request_id=f"r{number}")
    while engine.has_work:
        for step in engine.step():
            tokens.setdefault(step.request_id, []).extend(step.token_ids)
    return tokens


expected = serve("torch", Runner)
attention = attempt("decode_kernel", lambda: attention_of(decode_kernel), instead=library_attention)
runner = attempt("kv_write_kernel", lambda: runner_with(kv_write_kernel), instead=lambda: Runner)
try:
    answers = serve(attention, runner)
except Exception as error:
    answers = {}
    print("✗ the engine stopped:", error.__cause__ or error)
same = sum(answers.get(name) == expected[name] for name in expected)
print(f"{same} of {len(expected)} answers are those of the library's torch, token for token")

# %% name="serve_proof" tags=["solution-only"] covers=["A2", "C3"]
if available:
    assert check_kv_write(kv_write_kernel).state == "correct"
    assert check_decode(decode_kernel).state == "correct"
    assert serve(attention_of(decode_kernel), runner_with(kv_write_kernel)) == expected
assert check_fold(fold).state == "correct"

# %% [markdown] name="bytes_intro" covers=["A2", "C3"]
# ## Which bytes must move?
#
# Now the colleague's question. Each query meets each key of its context once: 2·D FLOPs for the score, 2·D for the
# value, over 2·D values read. That is about one FLOP per byte in 16-bit, times the query heads that share the
# KV head. Lab 02 put the ridge of an H100 in the hundreds. So arithmetic is not what this kernel waits for; what
# counts is how fast it gets its bytes.
#
# Write the bytes of keys and values that attention in **one layer** must read for **one** decode step, at
# least. The weights are not in it: the kernel never sees them. They are read once for the whole batch; each of
# these bytes is read for one request only.


# %% name="bytes_exercise" covers=["A2", "C3"]
def attention_bytes(contexts, kv_heads, head_dim, bytes_per_value):
    """Bytes of K and V that one layer's decode attention must read; contexts: tokens per request."""
    ### BEGIN SOLUTION
    return 2 * sum(contexts) * kv_heads * head_dim * bytes_per_value
    ### END SOLUTION


# %% [markdown] name="bytes_look"
# **Look.** The watched interpreter counts. *Loaded* is what all programs asked for; *distinct* counts each
# byte once, and that has to be your formula. Predict the ratio of the two before you run the cell: 4 query heads
# share 2 KV heads here.

# %% name="bytes_run" covers=["A2", "C3"]
contexts, heads, kv_heads, dim = [23, 5, 64], 4, 2, 16
must = attempt(
    "attention_bytes",
    lambda: attention_bytes(contexts, kv_heads, dim, 4),
    instead=lambda: must_move(contexts, kv_heads, dim, 4),
)
print(f"must move: {must:,} bytes (computed)")
loads = {
    "yours": attempt(
        "decode_kernel",
        lambda: count_loads(decode_kernel, contexts, heads, kv_heads, dim),
        instead=lambda: None,
    ),
    "the library's": count_loads(None, contexts, heads, kv_heads, dim),
}
show_loads(loads)

# %% name="bytes_proof" tags=["solution-only"] covers=["A2", "C3"]
if available:
    assert loads["yours"].distinct("k_cache", "v_cache") == must
    assert loads["yours"].loaded("k_cache", "v_cache") == must * heads // kv_heads
assert attention_bytes([4096] * 32, 8, 128, 2) == 32 * 4096 * 4096

# %% [markdown] name="bytes_explain" covers=["A2", "C3"]
# **Explain.** A program per *query* head loads each key once for every head of the group. The bytes that must move
# are the same, but they are asked for G times. Caches of the GPU catch part of that, for as long as the heads of a
# group run at about the same time; nobody promises it. The library gives one program the whole group: the
# group's queries are the rows of a small matrix product, and each key is loaded once.
#
# ## Achieved bandwidth
#
# Bytes that must move, over measured time, as a share of what a large copy reaches *on the same machine*. That is
# the figure to ask the colleague for.
#
# On a GPU the cell below times your kernel, the library's and torch's. On a CPU it times **torch's** decode
# attention on this machine: how long the interpreter takes for your kernel says nothing about any GPU, so
# it is not shown, and **no GPU figure is measured here**.

# %% name="rates" covers=["A2", "C3"]
if on_gpu():
    shape, kind, sizes = Shape(32, 8, 128), torch.float16, [(1, 8192), (8, 4096), (32, 4096)]
    first = attempt(
        "decode_kernel",
        lambda: decode_attention(decode_kernel),
        instead=lambda: resolve_attention("triton"),
    )
    timed = {"first": first, "library": resolve_attention("triton"), "torch": paged_attention}
else:
    shape, kind = Shape(9, 3, 64), torch.float32
    sizes = pick([(1, 4096), (4, 4096), (16, 4096)], [(1, 256), (2, 256)])
    timed = {"torch": paged_attention}
copy = copy_rate(device, mib=pick(512, 32), repeats=pick(7, 3)).median
formula = attempt(
    "attention_bytes",
    lambda: (float(attention_bytes([4096], 3, 64, 4)), attention_bytes)[1],
    instead=lambda: must_move,
)
rates = decode_rates(
    timed,
    sizes,
    shape,
    formula,
    device=device,
    dtype=kind,
    repeats=pick(15, 3),
    rotate_mib=pick(256, 8),
)
show_rates(rates, copy, device_name(device))

# %% [markdown] name="rates_explain" covers=["C3"]
# Read your own table. Two things to look for:
#
# - **The share.** Torch has no paged attention, so the library's torch path first *gathers* the keys into a new
#   tensor and then reads that. Each byte moves about three times: read, written, read again. Even at full speed
#   that leaves a third. A kernel that walks the block table reads each byte where it lies.
# - **The batch.** Does the share change with it? With few bytes a call, starting the threads (on a GPU: too few
#   programs, and the launch) is a larger part.
#
# The roof is a *measured* copy, not the data sheet. And a share of 90 % does not say that the kernel is fast, only
# that these bytes cannot be had faster; fewer bytes (fewer KV heads, 8-bit caches) still can help.
#
# ## What a compiler makes of your kernel
#
# A GPU's compiler needs no GPU. Here your kernel, as it stands in the cell above, is compiled for an A100
# (sm_80) and an H100 (sm_90), for 32 query heads, 8 KV heads, head dim 128, bfloat16. It does not run.
#
# - **registers** a thread, of 255: the more, the fewer programs share a processor.
# - **spills**: bytes that did not fit into registers and travel through memory. Wanted: 0.
# - **16-byte loads**: the widest a thread has. None at all means that keys come in small pieces.
# - **matrix**: whether the tensor cores are used. Think of the opening question before you miss them.

# %% name="compiled" covers=["C3"]
tiles = pick((16, 64, 128), (64,))
show_compiled(
    attempt("decode_kernel", lambda: compile_decode(decode_kernel, tiles), instead=list)
    + compile_decode(None)
)

# %% [markdown] name="compiled_explain" covers=["C3"]
# **Explain.** Larger tiles put more loads on their way at once, and cost registers. Which of yours would you try first
# on a card? The table cannot say which is *fastest*; it says which are not obviously wrong. A timing on a card
# decides, by the share of the copy rate.
#
# ## Check yourself
#
# The same two figures for a larger model and a faster card.

# %% name="q_bytes" covers=["A2", "C3"]
question = find_question("A2.kernel-bytes")
numbers = as_item(question).parameters_for(current_student())
print_prompt(as_item(question))
llama = Shape(heads=32, kv_heads=8, dim=128)
### BEGIN SOLUTION stub: kernel_mb = ...
lengths = [numbers["context"]] * numbers["batch"]
kernel_mb = attention_bytes(lengths, llama.kv_heads, llama.dim, 2) / 10**6
### END SOLUTION
check("A2.kernel-bytes", kernel_mb)

# %% name="q_share" covers=["C3"]
question = find_question("C3.kernel-share")
numbers = as_item(question).parameters_for(current_student())
print_prompt(as_item(question))
### BEGIN SOLUTION stub: share = ...
achieved = numbers["mb"] * 1e6 / (numbers["us"] * 1e-6)
share = f"{100 * achieved / (numbers['rate'] * 1e9)} %"
### END SOLUTION
check("C3.kernel-share", share)

# %% [markdown] name="quiz_intro" covers=["A2", "C3"]
# The same and two more, one of them the opening question, to be written down and scored by yourself:

# %% name="quiz" covers=["A2", "C3"]
quiz = QuizPanel(topic="kernels")
quiz

# %% [markdown] name="wrap" covers=["A2", "C3"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > Ask for bytes over time. The kernel must read every key and value of every context once, and does about a FLOP
# > with each byte. It is done when that rate is near what a copy reaches on the same card, at the batches and
# > contexts that matter.
#
# The full answer adds where a low share comes from: bytes asked for more than once (a program per query head), too
# few programs (batch 1, no splits), narrow loads, spills, launches. And what a high share cannot show: that fewer
# bytes would be better still.
#
# What was measured here: on a CPU, torch's attention and the copy rate of this machine; the bytes your kernel
# asks for, counted; its registers and loads, as compiled. Not measured: your kernel's time on a GPU, unless you
# ran this page on one.
#
# **Interview questions this lab prepares**
#
# - Which bytes must a decode attention kernel move, and why does batching not share them?
# - How does a softmax over all keys fit into a kernel that sees a tile of them?
# - What does a block table cost a kernel, and what does it have to mask?
# - Batch 1, long context, 5 % of the copy rate: what do you try first, and why not at batch 64?
#
# Next: lab 11, the interview.
