# %% [markdown] name="title" covers=["A2", "C3", "B15"]
# # 02 · The roofline: what limits a step
#
# You will measure how fast this machine reads memory and multiplies matrices, then watch real decode
# and prefill steps walk along the line those two numbers draw. About 50 minutes.
#
# **Answer this first**, on paper or aloud:
#
# > "Prefill is compute-bound and decode is memory-bound." When is that false, in both halves?

# %% [markdown] name="two_numbers"
# ## Two numbers make a roof
#
# A step has to do two things: **read bytes** (all the weights once, and every request's cache) and
# **do arithmetic** (about two FLOPs per weight and token). A machine has a best rate for each. Divide
# a step's FLOPs by its bytes and you have its *arithmetic intensity*:
#
# $$\begin{aligned}\text{FLOP/s} &\le \text{peak} \\ \text{FLOP/s} &\le \text{intensity} \times \text{bandwidth}\end{aligned}$$
#
# Left of the corner (the *ridge*) reading takes longer, right of it arithmetic does. Being
# bandwidth-bound is about *time*; it has nothing to do with running out of memory.
#
# First measure this machine's two numbers. Close what else computes: a busy machine is measured as a
# slow one.

# %% name="ceilings" covers=["C3"]
from llmlab.check import check, current_student
from llmlab.engine import load_model
from llmlab.labs.pace import pick
from llmlab.perf.calibrate import engine_precision, measure_ceilings
from llmlab.viz.figures.gauges import GAUGES_HEAD, gauges_rows
from llmlab.viz.figures.step_curve import step_curve
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import RooflinePanel, UtilizationPanel, WorksheetPanel
from llmlab.viz.show import live_figure, shown_table, table_text
from llmlab.viz.walk import WALK_HEAD, decode_walk, prefill_walk, show_walk, walk_rows

with loading_bar("SmolLM2-135M") as progress:
    model = load_model("smollm2-135m", progress=progress)
ceilings = measure_ceilings(repeats=pick(7, 3)).hardware()
dtype = engine_precision(model).weights
print(f"reads     {ceilings.bandwidth / 1e9:6.1f} GB/s")
print(f"computes  {ceilings.flops(dtype) / 1e9:6.1f} GFLOP/s with {dtype} weights")
print(f"ridge     {ceilings.ridge(dtype):6.1f} FLOP per byte")

# %% [markdown] name="predict"
# ## Predict
#
# A decode step of batch $B$ uses each weight for $B$ tokens. With $b$ bytes per weight its intensity
# is about $2B/b$, if the weights are most of what is read. Write down, before you measure:
#
# - From which batch size on should a decode step of *this* model on *this* machine take longer?
# - From how many prompt tokens on should prefill be limited by arithmetic?


# %% name="knee_exercise" covers=["A2", "C3"]
def knee_batch(peak_flops: float, bandwidth: float, bytes_per_weight: float) -> float:
    """The batch at which computing takes as long as reading: 2 FLOPs per weight and token.

    peak_flops in FLOP/s, bandwidth in bytes/s. Only the weights are counted.
    """
    ### BEGIN SOLUTION
    ridge = peak_flops / bandwidth
    return ridge * bytes_per_weight / 2
    ### END SOLUTION


# %% name="knee_try"
from llmlab.perf.hardware import DTYPE_BYTES
from llmlab.viz.exercise import attempt, print_prompt

knee = attempt(
    "knee_batch",
    lambda: knee_batch(ceilings.flops(dtype), ceilings.bandwidth, DTYPE_BYTES[dtype]),
    instead=lambda: ceilings.ridge(dtype) * DTYPE_BYTES[dtype] / 2,
)
print(f"predicted knee on this machine: batch {knee:.1f}")

# %% name="knee_proof" tags=["solution-only"]
assert knee_batch(989.5e12, 3350e9, 2) == 989.5e12 / 3350e9
assert knee_batch(1e12, 1e11, 4) == 20

# %% [markdown] name="run"
# ## Run: the two walks
#
# Real steps of the real engine: decode with more and more requests in the step, then prefill of
# longer and longer prompts. Each point is a median; the table shows the spread.

# %% name="walk" covers=["A2", "C3"]
batches = pick([1, 2, 4, 8, 16, 32, 64], [1, 4, 16])
prompts = pick([16, 32, 64, 128, 256, 512, 1024, 2048], [16, 128])
with loading_bar("decode steps", "Measuring") as progress:
    decode = decode_walk(model, ceilings, batches, steps=pick(8, 3), progress=progress)
with loading_bar("prefill steps", "Measuring") as progress:
    prefill = prefill_walk(model, ceilings, prompts, repeats=pick(3, 1), progress=progress)
show_walk(decode + prefill, ceilings, dtype)

# %% [markdown] name="look"
# ## Look: does a bigger batch cost more time?
#
# The dashed line is the floor: the slower of *bytes / bandwidth* and *FLOPs / matrix rate* with the
# rates you measured above. No real step can be under it for long.

# %% name="curve" covers=["A2", "C3"]
floor = [
    1e3 * max(m.achieved.bytes / ceilings.bandwidth, m.achieved.flops / ceilings.flops(dtype))
    for m in decode
]
curve = step_curve(
    batches,
    [m.ms for m in decode],
    floor,
    [m.fastest_ms for m in decode],
    [m.slowest_ms for m in decode],
)
shown_table("Decode steps by batch", WALK_HEAD, walk_rows(decode), live_figure(curve))

# %% name="per_token"
print("batch   ms per step   ms per token")
for m in decode:
    print(f"{m.tokens:5d} {m.ms:13.1f} {m.ms / m.tokens:14.2f}")

# %% [markdown] name="explain" covers=["A2", "C3", "B15"]
# ## Explain
#
# Read your own table against these four sentences, and mark each one as seen or not seen here.
#
# 1. At small batches a step takes about as long for four requests as for one: the weights are read
#    once either way. The *knee* is where that ends.
# 2. Past the knee the step grows with the batch, but the time *per token* keeps falling until
#    arithmetic is the limit, then it is flat.
# 3. A **short prefill** lies left of the ridge: a few dozen tokens reuse each weight too rarely.
# 4. A **large decode batch** lies right of it.
#
# So "prefill is compute-bound, decode is memory-bound" names the usual case and hides both exceptions.
# The intensity decides, and the intensity is counted from the step, not from its name. Context matters
# too: attention reads each request's own cache and shares it with nobody, so long contexts push a
# decode batch back towards the bandwidth roof.
#
# A point well under *both* roofs is limited by neither: small operations, Python and thread starts take
# time that no roof counts. On a small model that is a large part; you can see how large at batch 1.

# %% [markdown] name="watch" covers=["A2", "C3"]
# ## Watch it run
#
# The same two shares as gauges, while requests are served. Decide first: with 1 request, which of the four
# bars of prefill and decode is the longest? With 32? Choose *this machine, real* and press *Run*, once for
# each. While it runs the gauges show the last second; afterwards all steps. *Mixed* steps hold both kinds of
# tokens. The dotted line is at 40 %: a step under it on both gauges is near neither roof.

# %% name="watch_panel" covers=["A2", "C3"]
use = UtilizationPanel(model, ceilings)
use

# %% [markdown] name="watch_text"
# The same without widgets, for real:

# %% name="watch_run" covers=["A2", "C3"]
for requests in pick((1, 32), (1, 4)):
    use.run(requests, pick(128, 32), 16, real=True)
    print(f"{requests} at once")
    print(table_text(use.sentence(), GAUGES_HEAD, gauges_rows(use.phases)), end="\n\n")
print(use.caption())

# %% [markdown] name="other"
# ## Turn the knobs: other models, other devices
#
# Here nothing is measured: the cost model counts FLOPs and bytes, and the simulator's step time is
# fitted to published measurements. Ask it what you cannot run. Two things worth finding:
#
# - the batch at which an 8B model on an H100 reaches the ridge, at 128 and at 8,192 context tokens;
# - the shortest prompt whose prefill is near the compute roof there.

# %% name="panel" covers=["A2", "C3"]
roof = RooflinePanel()
roof

# %% [markdown] name="sheet" covers=["C3"]
# ## Worksheet
#
# The same arithmetic for a data-centre GPU: on paper, or in Python.

# %% name="sheet_panel" covers=["C3"]
worksheet = WorksheetPanel("c3")
worksheet

# %% name="sheet_code" covers=["C3"]
from llmlab.check import find_item

item = find_item("C3.ridge")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: ridge = ...
ridge = numbers["peak"] * 1000 / numbers["bandwidth"]
### END SOLUTION
check("C3.ridge", ridge)

# %% name="worked" tags=["solution-only"] covers=["C3"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for item in load_worksheet("c3"):
    result = check(item.id, solution(item.id, current_student()))
    print(f"{result.glyph} {item.id:<22} = {item.spec.answer}")
    assert result.state == "correct", item.id

# %% [markdown] name="wrap" covers=["A2", "B15", "C3"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > The first half is false for short prompts, the second for large batches (and true again when their
# > contexts are long). What decides is FLOPs per byte against the machine's ridge.
#
# The full answer adds the measurement: on this machine you know the ridge, the knee, and how far under
# the roof real steps stay, with their spread. On another machine you would measure again.
#
# **Interview questions this lab prepares**
#
# - Why is decode usually limited by memory bandwidth, and when not?
# - What does a bigger batch cost on a dense model below the knee? What does it buy?
# - A dashboard says "GPU utilization 100 %". Which roof is near? (Neither follows from it: the figure
#   only says that some kernel was running.)
# - What does a longer context do to a decode step's intensity?
#
# Next: lab 03 opens the KV cache.
