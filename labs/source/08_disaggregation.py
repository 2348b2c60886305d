# %% [markdown] name="title" covers=["C7"]
# # 08 · Disaggregation: prefill here, decode there
#
# You will size a prompt's KV by formula, move a real one between two processes and compare to the byte,
# watch how much of the transfer hides behind computing, then set pools against replicas on the same number of
# simulated GPUs, and say when to leave it alone. About 45 minutes.
#
# **Answer this first**, on paper or aloud:
#
# > A team wants prefill and decode on separate GPUs, so that documents no longer stall chats. What has to
# > travel between the two for a prompt of 8,000 tokens, and how long does that take? What do they still
# > *not* get? And when would you tell them not to do it?

# %% [markdown] name="predict" covers=["C7"]
# ## Predict
#
# Two processes of this machine will serve a few prompts with the real model: one computes prompts, one
# writes answers. Write down, before you run it:
#
# - how many **bytes** travel for one token of a prompt (30 layers, 9 query heads, 3 KV heads of 64 values,
#   4 bytes a value), and for a prompt of 500 tokens;
# - how much of the transfer a user can **notice**: all of it, half, next to nothing;
# - whether the answers are the **same tokens** as those of one ordinary engine.

# %% name="setup" covers=["C7"]
from statistics import median

from llmlab.check import check, current_student, find_item
from llmlab.engine.disaggregated import run_pair
from llmlab.labs.moving import (
    decode_step_ms,
    moved_table,
    prefill_windows,
    share_of,
)
from llmlab.labs.moving import warranted as library_warranted
from llmlab.labs.pace import pick
from llmlab.measure.limits import Limits
from llmlab.perf.cost import kv_bytes_per_token
from llmlab.perf.hardware import load_hardware
from llmlab.perf.interconnect import Interconnect, interconnect_catalog, load_interconnect
from llmlab.perf.models import load_model_config
from llmlab.sim.load import ClosedLoop, poisson_arrivals
from llmlab.sim.pools import moved_summary, simulate_disaggregated, simulate_replicas
from llmlab.sim.step_time import default_constants
from llmlab.viz.exercise import attempt, print_prompt, print_question
from llmlab.viz.figures.attainment import served
from llmlab.viz.figures.kv_transfer import TRANSFER_HEAD, kv_transfer, transfer_rows
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import PoolsPanel, QuizPanel, WorksheetPanel
from llmlab.viz.show import live_figure, shown_table

# %% [markdown] name="formula" covers=["C7"]
# ## The formula
#
# Attention keeps a key and a value for every token, in every layer, for every KV head. That is what has to
# travel: not the text, which the other side could read itself, but what reading it has *cost*. Write it.


# %% name="bytes_exercise" covers=["C7"]
def kv_bytes(layers: int, kv_heads: int, head_dim: int, value_bytes: int, tokens: int) -> int:
    """Bytes of the keys and values that `tokens` tokens keep."""
    ### BEGIN SOLUTION
    keys_and_values = 2
    return keys_and_values * layers * kv_heads * head_dim * value_bytes * tokens
    ### END SOLUTION


# %% name="bytes_try" covers=["C7"]
name = pick("smollm2-135m", "tiny")
SHAPES = {"smollm2-135m": (30, 3, 64, 4), "tiny": (2, 2, 16, 4)}  # float32
shape = SHAPES[name]


def library_bytes(tokens: int) -> int:
    """The same from the library's cost model."""
    if name == "tiny":
        return 2 * 2 * 2 * 16 * 4 * tokens
    return round(kv_bytes_per_token(load_model_config(name), "fp32") * tokens)


def formula(tokens: int) -> int:
    """Yours, for the model that runs here."""
    return kv_bytes(*shape, tokens)


per_token = attempt("kv_bytes", lambda: formula(1), instead=lambda: library_bytes(1))
print(f"{name}: {per_token:,} bytes a token, {500 * per_token / 2**20:.1f} MiB for 500 tokens")

# %% name="bytes_proof" tags=["solution-only"] covers=["C7"]
assert kv_bytes(30, 3, 64, 4, 1) == kv_bytes_per_token(load_model_config("smollm2-135m"), "fp32")
assert kv_bytes(32, 8, 128, 2, 10) == 10 * kv_bytes_per_token(load_model_config("llama-3.1-8b"))
assert formula(7) == library_bytes(7)

# %% name="token_code" covers=["C7"]
item = find_item("C7.kv-per-token")
mine = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: token_bytes = ...
token_bytes = kv_bytes(mine["layers"], mine["kv_heads"], mine["head_dim"], mine["bytes"], 1)
### END SOLUTION
check("C7.kv-per-token", token_bytes)

# %% [markdown] name="run" covers=["C7"]
# ## Run: two processes, one cache on the move
#
# What happens for a long prompt, in this order:
#
# 1. the **decode** worker takes blocks for the whole prompt, then asks;
# 2. the **prefill** worker computes, and sends each layer's keys and values while it computes the next layer;
# 3. the decode worker has all of them, says so, and starts to write;
# 4. only then the prefill worker gives its blocks back.
#
# If the decode worker has no blocks, it asks for nothing: the prompt waits (*back-pressure*). A prompt of fewer than
# 64 tokens is not worth a trip and stays. Here a short prompt begins first and keeps writing while two
# long ones arrive. Half of this machine's cores each.

# %% name="pair" covers=["C7"]
NOTE = (
    "A server reads the whole prompt at once and then writes its answer one token at a time. "
    "Whoever reads a long document beside many short chats lets them wait, or cuts it in pieces. "
)
prompts = ["Name one use of a cache.", NOTE * pick(6, 1), "In short: " + NOTE * pick(12, 2)]
ANSWER = pick(64, 12)  # tokens
ARRIVALS = pick([0.0, 0.5, 0.5], [0.0, 0.0, 0.0])  # seconds
with loading_bar("the pair of processes", "Running") as progress:
    pair = run_pair(
        name,
        prompts,
        max_tokens=ANSWER,
        arrivals=ARRIVALS,
        progress=progress,
    )
moved_table(pair, lambda tokens: per_token * tokens)

# %% name="pair_equal" covers=["C7"]
print(f"moved    {pair.bytes_moved:>12,} bytes, counted where they are sent")
print(f"received {pair.bytes_received:>12,} bytes, counted where they arrive")
print(f"formula  {per_token * sum(r.moved_tokens for r in pair.requests):>12,} bytes")
print(f"same tokens as one ordinary engine: {pair.tokens_equal} ({pair.tokens_compared} compared)")
print(f"blocks still taken at the end: {pair.leaked_blocks}")

# %% name="pair_proof" tags=["solution-only"] covers=["C7"]
assert (
    pair.bytes_moved == pair.bytes_received == sum(formula(r.moved_tokens) for r in pair.requests)
)
assert [r.where for r in pair.requests] == ["local", "remote", "remote"]
assert pair.tokens_equal
assert set(pair.leaked_blocks.values()) == {0}

# %% [markdown] name="look" covers=["C7"]
# ## Look: layer by layer
#
# The longest prompt. Shaded: the prefill computes. Each bar is one message: from where it was sent to where it
# lies in the other process's cache. A prompt over the step's token budget is computed in chunks, so a
# layer may have several bars: **prefill can still chunk**.

# %% name="gantt" covers=["C7"]
longest = max(pair.requests, key=lambda request: request.moved_tokens)
figure = live_figure(kv_transfer(longest))
shown_table("The longest prompt, measured", TRANSFER_HEAD, transfer_rows(longest), figure)

# %% [markdown] name="overlap_text" covers=["C7"]
# Now the same, but with every layer sent only *after* the forward pass:

# %% name="overlap" covers=["C7"]
with loading_bar("the pair, without overlap", "Running") as progress:
    after = run_pair(
        name,
        prompts,
        max_tokens=ANSWER,
        arrivals=ARRIVALS,
        overlap=False,
        compare=False,
        progress=progress,
    )
rows = []
for label, result in (("layer by layer", pair), ("after the pass", after)):
    moved = [r for r in result.requests if r.where == "remote"]
    rows.append(
        [
            label,
            f"{sum(r.bytes for r in moved):,}",
            f"{sum(r.transfer_ms for r in moved):,.1f}",
            f"{sum(r.visible_ms for r in moved):,.1f}",
        ]
    )
shown_table(
    "Two ways to send the same bytes, measured here",
    ["sent", "bytes", "on the wire, ms", "visible, ms"],
    rows,
)

# %% [markdown] name="explain" covers=["C7"]
# ## Explain
#
# The bytes are the same in both rows, and the formula's, to the byte: nothing but keys and values travels. What
# differs is *when*. Layer by layer, the wire is at work while the processor computes the next layer. What is left
# when the last layer is done is what a user can notice: the **visible** part. It stays near nothing as long as one
# layer's message takes less time than one layer's computation. (Here "on the wire" also counts the time
# a message waits for a busy receiver, so it is no measure of a link.)
#
# The answers are the same tokens: where the keys and values were computed changes nothing in them.
#
# ## How long on a real link?
#
# For one prompt of 8,192 tokens of an 8B model. `busy` is bytes over the link's rate, at the efficiency the
# data file assumes for it. `visible` comes from the simulator, beside the prefill of an A100.

# %% name="links" covers=["C7"]
prompt_bytes = kv_bytes_per_token(load_model_config("llama-3.1-8b")) * 8192
rows = []
for link_name in interconnect_catalog().entries:
    link = load_interconnect(link_name)
    alone = simulate_disaggregated([(0, 8192, 2)], "llama-3.1-8b", "a100-80gb", interconnect=link)
    (move,) = alone.meta["moves"]
    rows.append(
        [
            link.title,
            f"{link.bandwidth / 1e9:g}",
            f"{1e3 * prompt_bytes / link.rate:,.0f}",
            f"{move['visible_ns'] / 1e6:,.1f}",
        ]
    )
prefill_ms = (move["t_prefill_end"] - move["t_asked"]) / 1e6
shown_table(
    f"{prompt_bytes / 2**30:.2f} GiB over a link; the prefill takes {prefill_ms:,.0f} ms (simulated)",
    ["link", "GB/s stated", "busy, ms", "visible, ms (simulated)"],
    rows,
)

# %% name="transfer_code" covers=["C7"]
item = find_item("C7.transfer")
mine = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: transfer_ms = ...
moved_bytes = kv_bytes(
    mine["layers"], mine["kv_heads"], mine["head_dim"], mine["bytes"], mine["prompt"]
)
transfer_ms = moved_bytes / (mine["link"] * 1e9) * 1e3
### END SOLUTION
check("C7.transfer", transfer_ms)

# %% [markdown] name="pools" covers=["C7"]
# ## The same GPUs, two ways
#
# Two GPUs that each do everything (**colocated**), or one that prefills and one that decodes (**1P1D**)? A fair
# comparison needs *equal* GPUs, the same requests, and both promises at once: a request counts if its TTFT
# **and** its TPOT are within their limits. This is the figure with which DistServe was argued for (Zhong et al.,
# OSDI 2024), here with our own scheduler and cost model, so **simulated**: prompts of 2,048 tokens, answers of 64.
#
# Turn the limits, the rate, the split and the link, and find one setting for each:
#
# - 1P1D carries a higher rate than two colocated GPUs;
# - two colocated GPUs carry more than 1P1D;
# - both keep both promises, so that there is nothing to gain;
# - a link that spoils it.

# %% name="panel" covers=["C7"]
panel = PoolsPanel(rates=pick((30, 60, 90, 120, 150, 180, 210, 240), (30, 120, 210)))
panel

# %% [markdown] name="why" covers=["C7"]
# Both curves can be explained from the two right-hand plots:
#
# - **TPOT**: on a colocated GPU every step of a chat may hold a piece of somebody's prompt, more often
#   the higher the rate. In the decode pool there are (almost) no prompts: TPOT stays flat.
# - **TTFT**: two colocated GPUs share the prompts; in 1P1D one GPU has all of them. Its queue starts to grow at
#   half the rate, and each prompt has the transfer and a step of the decode worker behind it.
#
# So: a tight TPOT with a loose TTFT favours pools. A tight TTFT with a loose TPOT favours replicas. Where the
# colocated baseline keeps both promises, separating is not warranted.

# %% [markdown] name="decide" covers=["C7"]
# ## Decide
#
# Write the rule. Both shares are of requests within both limits, at equal GPUs and the same rate. Separate
# only if the baseline misses its target and the pools reach it.


# %% name="warranted_exercise" covers=["C7"]
def warranted(colocated: float, apart: float, target: float) -> bool:
    """Is it right to separate prefill and decode, by these shares of requests within limits?"""
    ### BEGIN SOLUTION
    baseline_misses = colocated < target
    return baseline_misses and apart >= target
    ### END SOLUTION


# %% name="warranted_try" covers=["C7"]
colocated_runs, pools_runs = panel.runs()
rows = []
for ttft_limit, tpot_limit in ((1000, 14), (400, 50), (1000, 50), (300, 8)):
    promise = Limits(ttft_ms=ttft_limit, tpot_ms=tpot_limit)
    for one, other in zip(colocated_runs, pools_runs, strict=True):
        if one.rate in (30, 120, 210):
            rows.append((promise, one.rate, one.attained(promise), other.attained(promise)))
verdicts = attempt(
    "warranted",
    lambda: [warranted(one, other, 0.9) for _, _, one, other in rows],
    instead=lambda: [library_warranted(one, other, 0.9) for _, _, one, other in rows],
)
shown_table(
    "Two GPUs, target 90 % within both limits (simulated)",
    ["TTFT ms", "TPOT ms", "requests/min per GPU", "colocated", "1P1D", "separate?"],
    [
        [
            f"{p.ttft_ms:g}",
            f"{p.tpot_ms:g}",
            f"{rate:g}",
            f"{100 * a:.0f} %",
            f"{100 * b:.0f} %",
            "yes" if v else "no",
        ]
        for (p, rate, a, b), v in zip(rows, verdicts, strict=True)
    ],
)

# %% name="warranted_proof" tags=["solution-only"] covers=["C7"]
assert verdicts == [library_warranted(one, other, 0.9) for _, _, one, other in rows]
assert True in verdicts
assert verdicts.count(False) > verdicts.count(True)
assert not warranted(0.95, 1.0, 0.9)
assert warranted(0.89, 0.9, 0.9)
assert not warranted(0.5, 0.89, 0.9)

# %% [markdown] name="tune_first" covers=["C7", "C6"]
# Before you buy a link: was the baseline *tuned*? The panel's colocated GPUs compute up to 2,048 prompt
# tokens in a step. Cut smaller (the menu "Colocated: budget" does it as well), against the same pools:

# %% name="tuned" covers=["C7", "C6"]
promise = Limits(ttft_ms=1000, tpot_ms=14)
load = poisson_arrivals(4.0, pick(120, 60), [("request", 2048, 64)], seed=1)  # 120 a minute and GPU
PLACE = ("llama-3.1-8b", "a100-80gb")
tried = {
    f"2x colocated, {budget} tokens a step": simulate_replicas(
        load, *PLACE, 2, max_num_batched_tokens=budget
    )
    for budget in (2048, 512, 256, 128)
}
tried["1P1D, 2048 tokens a step"] = simulate_disaggregated(load, *PLACE, "1P1D")
rows = []
for label, trace in tried.items():
    run = served(trace, 120)
    share = run.attained(promise)
    times = [f"{run.p90('ttft'):,.0f}", f"{run.p90('tpot'):,.1f}"]
    rows.append([label, f"{100 * share:.0f} %", *times])
shown_table(
    "Tuned first: 120 requests/min per GPU, TTFT 1,000 ms and TPOT 14 ms (simulated)",
    ["setting", "within both", "TTFT p90 ms", "TPOT p90 ms"],
    rows,
)

# %% [markdown] name="tuned_text" covers=["C7", "C6"]
# A tuned baseline can take back all that the pools had won, and keep its shorter TTFT. Below the roofline's knee a
# decode step has arithmetic to spare, so a small piece of a prompt rides along almost free. *Almost*: this
# cost model lets real kernels reach the same efficiency at 128 tokens as at 2,048, and they do not quite. Believe the
# direction, measure the size. Pools are for what is left when the budget has been turned.

# %% [markdown] name="not_bought" covers=["C7"]
# ## What it does not buy
#
# ### Two processes on one device are not isolated
#
# Your own run above: the short prompt wrote its answer in one process while the other computed long prompts.
# Two processes, each with its own cores. Were its steps as fast as when the other was idle? They still share
# memory bandwidth and caches. The same requests on one engine show what a prompt does to a step there.

# %% name="isolation" covers=["C7"]
windows = prefill_windows(pair)
while_busy, alone = decode_step_ms(pair.decode_trace, pair.requests[0].request_id, windows)
for label, steps in (("prefill worker idle", alone), ("prefill worker at work", while_busy)):
    if steps:
        print(f"decode step, {label:<23} median {median(steps):6.1f} ms  ({len(steps)} steps)")
    else:
        print(f"decode step, {label:<23} no step fell into it this time")

# %% [markdown] name="one_gpu" covers=["C7"]
# On one **GPU** it is worse: both processes want *all* of its units. Grant them the fairest split there can be,
# half of the compute, the bandwidth and the memory each, and let the "transfer" cost nothing. Simulated:

# %% name="halves" covers=["C7"]
whole = load_hardware("a100-80gb")
half = share_of(whole, 0.5)
constants = default_constants(whole.name)
nothing_to_move = Interconnect("same GPU", "the same memory", whole.bandwidth, 1.0, 0.0)
load = poisson_arrivals(1.0, pick(60, 30), [("request", 2048, 64)], seed=1)
one = simulate_replicas(load, "llama-3.1-8b", whole, 1, constants=constants)
two = simulate_disaggregated(
    load, "llama-3.1-8b", half, "1P1D", interconnect=nothing_to_move, constants=constants
)
rows = []
for label, trace in (("one process, the whole GPU", one), ("two processes, half of it each", two)):
    run = served(trace, 60)
    rows.append([label, f"{run.p90('ttft'):,.0f}", f"{run.p90('tpot'):,.1f}"])
shown_table(
    "One GPU, 60 requests a minute (simulated)", ["how", "TTFT p90 ms", "TPOT p90 ms"], rows
)

# %% name="halves_proof" tags=["solution-only"] covers=["C7"]
assert served(two, 60).p90("ttft") > 1.5 * served(one, 60).p90("ttft")
assert served(two, 60).p90("tpot") > 1.3 * served(one, 60).p90("tpot")

# %% [markdown] name="decodes" covers=["C7"]
# ### Decodes still compete, and both pools still batch
#
# More users in a closed loop, four prefill workers for one that decodes, so that the decode pool is the busy
# one. Watch its TPOT, then what happens when its KV pool holds 12,800 tokens only.

# %% name="compete" covers=["C7"]
rows = []
for label, knobs in (("", {}), (", small KV pool", {"num_blocks": 800})):
    for users in pick((1, 16, 64), (1, 32)):
        loop = ClosedLoop(users, 3 * users, prompt_tokens=512, output_tokens=256)
        trace = simulate_disaggregated(loop, *PLACE, "4P1D", **knobs)
        run = served(trace, 0)
        moved = moved_summary(trace)
        decode_steps = [s for s in trace.steps if s.worker == "decode 0"]
        prefill_steps = [s for s in trace.steps if s.worker.startswith("prefill")]
        rows.append(
            [
                f"{users}{label}",
                f"{run.p90('tpot'):.1f}",
                f"{run.p90('ttft'):,.0f}",
                str(max(len(s.scheduled) for s in decode_steps)),
                str(max(len(s.scheduled) for s in prefill_steps)),
                str(moved["queues"]["decode 0"]["max_waiting"]),
            ]
        )
shown_table(
    "4P1D (simulated)",
    [
        "users",
        "TPOT p90 ms",
        "TTFT p90 ms",
        "most in a decode step",
        "most in a prefill step",
        "most held back",
    ],
    rows,
)

# %% name="compete_proof" tags=["solution-only"] covers=["C7"]
few, many = rows[0], rows[len(rows) // 2 - 1]
assert float(many[1]) > 1.15 * float(few[1])
assert int(many[3]) > 8 * int(few[3])
assert int(many[4]) > 1
assert int(rows[-1][5]) > int(many[5])

# %% [markdown] name="compete_explain" covers=["C7"]
# TPOT grows with the users although no prompt is near: every step reads all their keys and values, over one
# device's bandwidth. Both pools run several requests in a step: batching did not go away, it happens twice.
# With the small pool the last column grows: prompts are *held back* before their prefill, and the
# wait shows in TTFT. That is the back-pressure of step 1. Answers that outgrow the small pool are preempted and
# computed again, by the decode worker itself: their TPOT shows it.
#
# ### Prefill can still chunk
#
# A document of 8,192 tokens on the prefill worker, with a budget of 8,192 tokens and of 1,024:

# %% name="chunk" covers=["C7", "C6"]
for budget in (8192, 1024):
    trace = simulate_disaggregated(
        [(0, 8192, 8)],
        *PLACE,
        "1P1D",
        interconnect="pcie-4",
        prefill_knobs={"max_num_batched_tokens": budget},
    )
    (move,) = trace.meta["moves"]
    steps = [s for s in trace.steps if s.worker == "prefill 0"]
    begun = (move["t_first_transfer"] - steps[0].t_start) / 1e6
    took = (move["t_prefill_end"] - steps[0].t_start) / 1e6
    print(
        f"budget {budget}, steps {len(steps)}: first bytes out after {begun:.1f} ms, computed "
        f"after {took:.1f} ms, {move['bytes'] / 2**30:.2f} GiB (simulated)"
    )

# %% [markdown] name="sheet_intro" covers=["C7"]
# The chunks change when the bytes leave, not how many there are.
#
# ## Check

# %% name="sheet_panel" covers=["C7"]
worksheet = WorksheetPanel("c7")
worksheet


# %% name="ask_processes" covers=["C7"]
print_question("C7.two-processes")

# %% name="answer_processes" covers=["C7"]
### BEGIN SOLUTION stub: two_processes = ...
two_processes = "one-gpu"
### END SOLUTION
check("C7.two-processes", two_processes)

# %% name="ask_true" covers=["C7"]
print_question("C7.true-of-it")

# %% name="answer_true" covers=["C7"]
### BEGIN SOLUTION stub: true_of_it = ...
true_of_it = ["kv-moves", "compete", "chunk"]
### END SOLUTION
check("C7.true-of-it", true_of_it)

# %% name="worked" tags=["solution-only"] covers=["C7"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for item in load_worksheet("c7"):
    result = check(item.id, solution(item.id, current_student()))
    print(f"{result.glyph} {item.id:<22} = {item.spec.answer}")
    assert result.state == "correct", item.id

# %% [markdown] name="interview" covers=["C7"]
# ## The interview questions
#
# Answer aloud first, then open the short answer, then the full one.

# %% name="quiz" covers=["C7"]
quiz = QuizPanel(topic="C7")
quiz

# %% [markdown] name="wrap" covers=["C7"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > The prompt's keys and values travel: two times layers times KV heads times head dimension times bytes, for each
# > token. Over a fast link nearly all of it hides behind the prefill. Decodes still compete in their
# > pool, both pools still batch, and two processes on one GPU are not isolated. Leave it alone where
# > the colocated baseline, tuned, keeps both promises.
#
# The full answer adds what you have measured or simulated on this page: the bytes, to the byte, between two real
# processes; the visible part with and without overlap; a flat TPOT and an earlier queue at equal GPUs; the
# limits at which each way wins; the link at which pools stop to pay; back-pressure where the decode
# pool is full.
#
# What no page shows you: your own lengths, rate and limits. Pools are sized for a mix (1P1D, 2P1D, 1P2D);
# when the mix moves, one of them idles.
#
# **Interview questions this lab prepares**
#
# - When would you separate prefill and decode onto different accelerators, and when not?
# - Two processes on one GPU: what is wrong with that as isolation?
# - How many bytes does a prompt of 8,192 tokens of your model move, and how much of that does a user notice?
# - What do decodes still compete for once no prompt is near?
# - Which two limits decide between replicas and pools, and which way does each of them push?
#
# Next: lab 09 looks at a server from outside.
