# %% [markdown] name="title" covers=["A4", "A5", "C4"]
# # 06 · Load: from one user to many
#
# You will put 1, 2, 4 ... users on the real engine here and on simulated GPUs, explain a published
# measurement, run a KV pool full, and pick a concurrency you could defend. About 50 minutes.
#
# **Answer this first**, on paper or aloud:
#
# > A server writes 8 times as many tokens per second with 64 users as with one. Did each user get
# > slower? By how much, and what would you look at to know?

# %% [markdown] name="predict"
# ## Predict
#
# A user here is a closed loop: send, wait for the whole answer, send the next. Write down for 8 users
# against 1, on this machine: the ratio of the output rate, of TPOT, of TTFT.

# %% name="load"
from llmlab.check import check, current_student, find_item
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.labs.pace import pick
from llmlab.measure.limits import Limits
from llmlab.measure.metrics import summarize
from llmlab.measure.run import run_workload
from llmlab.measure.workload import parse_workload
from llmlab.sim.load import ClosedLoop
from llmlab.sim.simulate import simulate
from llmlab.viz.exercise import attempt, print_prompt
from llmlab.viz.figures.load_sweep import (
    SWEEP_HEAD,
    load_sweep,
    loaded,
    safe_users,
    sweep_rows,
)
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import LoadPanel, WorksheetPanel
from llmlab.viz.show import live_figure, shown_table

with loading_bar("SmolLM2-135M") as progress:
    model = load_model(pick("smollm2-135m", "tiny"), progress=progress)

# %% [markdown] name="run"
# ## Run: real users on this machine
#
# Short prompts, short answers, every request for real. The same number of requests per user each time.


# %% name="real" covers=["A4"]
def closed_loop(users: int) -> dict:
    """A workload of `users` users that each send two requests of 32 + 16 tokens."""
    return {
        "name": f"{users} users",
        "seed": 0,
        "classes": [{"name": "chat", "prompt_tokens": 32, "output_tokens": 16}],
        "arrivals": {"kind": "closed", "concurrency": users},
        "stop": {"num_prompts": 2 * users},
    }


real = []
counts = pick([1, 2, 4, 8, 16], [1, 4])
with loading_bar("closed loops", "Running") as progress:
    for number, users in enumerate(counts):
        progress(number, len(counts), f"{users} users")
        engine = Engine(model, config=EngineConfig(max_num_batched_tokens=256, max_model_len=64))
        real.append(loaded(run_workload(engine, parse_workload(closed_loop(users))), users))
    progress(len(counts), len(counts), "done")
figure = live_figure(load_sweep(real))
shown_table("Closed loops, measured here", SWEEP_HEAD, sweep_rows(real), figure)

# %% [markdown] name="look"
# ## Look
#
# Check three things against your own table, with its noise. The output rate rises: each step's weights
# are shared by more requests. TPOT rises: every request waits for a longer step. TTFT rises: a new
# prompt shares its first steps with everyone's decodes and with other prompts.
#
# ## Explain
#
# Towards the right the owner of the machine is happier and every single user is less happy. One number
# alone would have shown you only one of them. Where does the rate stop growing in proportion?

# %% [markdown] name="published" covers=["A4"]
# ## A published run
#
# The next worksheet holds what was measured for a large mixture-of-experts model with one user and with
# many (the source is in its text). Work out the three ratios, and keep an eye on the middle one: on a
# dense model below its knee you would expect TPOT to grow far less.

# %% name="a4_panel" covers=["A4"]
published = WorksheetPanel("a4")
published

# %% [markdown] name="why" covers=["A5"]
# ## Why it grew: experts
#
# That model has many experts per layer and uses a few of them per token. One request reads a few experts'
# weights per step. Many requests, each with its own choice, read nearly all of them. So this batch is
# *not* nearly free: the bytes grow with it.
#
# How many distinct experts does a step with $B$ tokens read? Each expert is missed by one token with
# probability $1 - k/E$, by all of them with that to the power $B$ (uniform, independent routing is
# assumed; real routers are neither). Write the expectation.


# %% name="experts_exercise" covers=["A5"]
def distinct_experts(num_experts: int, per_token: int, tokens: int) -> float:
    """Expected number of different experts that `tokens` tokens read in one layer."""
    ### BEGIN SOLUTION
    missed_by_all = (1 - per_token / num_experts) ** tokens
    return num_experts * (1 - missed_by_all)
    ### END SOLUTION


# %% name="experts_try" covers=["A5"]
from llmlab.perf.cost import expected_experts

sizes = (1, 4, 16, 64)
expected = attempt(
    "distinct_experts",
    lambda: [round(distinct_experts(128, 8, batch), 1) for batch in sizes],
    instead=lambda: [round(expected_experts(128, 8, batch), 1) for batch in sizes],
)
for batch, count in zip(sizes, expected, strict=True):
    print(f"   batch {batch:3d}: {count:6.1f} of 128 experts")

# %% name="experts_proof" tags=["solution-only"]
for batch in (1, 2, 16, 64, 300):
    assert abs(distinct_experts(128, 8, batch) - expected_experts(128, 8, batch)) < 1e-9
assert distinct_experts(4, 4, 1) == 4

# %% name="a5_panel" covers=["A5"]
experts = WorksheetPanel("a5")
experts

# %% [markdown] name="panel_text" covers=["A4", "A5"]
# ## The same on simulated GPUs
#
# Simulated: the real scheduler under a virtual clock, step times fitted to published measurements. Find
# the growth of TPOT from 1 to 64 users for the mixture-of-experts model, then for a dense 8B model, and
# compare the two with your two explanations.
#
# *Where* switches the same knobs to this machine, for real: make the prompts short there, then press *Run*.

# %% name="panel" covers=["A4", "A5"]
sweep = LoadPanel(real_model=model)
sweep

# %% name="compare_growth" covers=["A5"]
for name in ("qwen3-30b-a3b", "llama-3.1-8b"):
    runs = LoadPanel(model=name, users=(1, 64)).sweep()
    growth = runs[1].tpot / runs[0].tpot
    print(f"{name:14s} TPOT {runs[0].tpot:.1f} -> {runs[1].tpot:.1f} ms, {growth:.1f}x (simulated)")

# %% [markdown] name="kv" covers=["C4"]
# ## The pool runs full
#
# More users need more KV. A limit on *requests* is no safe capacity: requests differ in length by a
# factor of a hundred, memory does not know how many they are. Here long prompts meet a card with 40 GB.
# Watch the last columns: where the resident tokens stop growing, TPOT stops growing too, and TTFT takes
# over. The extra users wait in the queue.

# %% name="kv_full" covers=["C4"]
full = LoadPanel(
    model="llama-3.1-8b", hardware="a100-40gb", users=pick((4, 16, 32, 64, 128), (4, 64))
)
full.prompt.box.value = 4096
full_runs = full.sweep()
figure = live_figure(load_sweep(full_runs))
shown_table("Long prompts on 40 GB (simulated)", SWEEP_HEAD, sweep_rows(full_runs), figure)

# %% name="c4_panel" covers=["C4"]
capacity = WorksheetPanel("c4")
capacity

# %% name="c4_code" covers=["C4"]
item = find_item("C4.tokens")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: tokens_that_fit = ...
tokens_that_fit = numbers["free"] * 1024 * 1024 // numbers["kib"]
### END SOLUTION
check("C4.tokens", tokens_that_fit)

# %% [markdown] name="choose" covers=["C4", "A4"]
# ## Choose
#
# Two limits: TTFT and TPOT, at the median here. The most users up to which both hold, with every smaller number
# holding too, is a concurrency you can defend, for this mix and these lengths.

# %% name="choose_run" covers=["C4"]
for ttft_limit, tpot_limit in ((1000, 20), (1000, 35), (80, 35)):
    best = safe_users(sweep.sweep(), ttft_limit, tpot_limit)
    print(f"TTFT {ttft_limit} ms, TPOT {tpot_limit} ms: up to {best} users (simulated)")

# %% [markdown] name="goodput" covers=["A4", "C4"]
# A median lets half of the requests miss. **Goodput** counts, per second, only those that meet *every* limit.
# Predict, for a dense model with more and more users: where does the output rate have its top, and where goodput?

# %% name="goodput_run" covers=["A4", "C4"]
promise = Limits(ttft_ms=1000, tpot_ms=35)
print("simulated, per second")
print("users   tokens   done   goodput")
for users in pick((16, 32, 64, 128), (16, 128)):
    trace = simulate(ClosedLoop(users, 4 * users, 1000, 64), "llama-3.1-8b", "h100-sxm")
    rates = summarize(trace, limits=promise).all.rates
    done, good = rates.completed_req_s, rates.goodput_req_s
    print(f"{users:5d} {rates.output_tok_s:8.0f} {done:6.1f} {good:9.1f}")

# %% [markdown] name="goodput_explain" covers=["A4", "C4"]
# The output rate still rises where goodput has fallen: the server works for answers that come too late. So the
# throughput's top is no place to run a server at.

# %% name="worked" tags=["solution-only"] covers=["A4", "A5", "C4"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for sheet in ("a4", "a5", "c4"):
    for item in load_worksheet(sheet):
        result = check(item.id, solution(item.id, current_student()))
        print(f"{result.glyph} {item.id:<22} = {item.spec.answer}")
        assert result.state == "correct", item.id

# %% [markdown] name="wrap" covers=["A4", "A5", "C4"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > Yes. In that run every gap became several times longer while the machine wrote several times more.
# > Look at TTFT and TPOT beside the rate, per class of request.
#
# The full answer names the reason, which is not the same for every model: a dense model's step grows
# little below its knee, a mixture of experts reads more experts with every request. And it names the
# end of the road: the KV pool. Past it more users add nothing but queue.
#
# **Interview questions this lab prepares**
#
# - Why do cost per token and waiting per user move in opposite directions?
# - Why is a ceiling on requests no safe capacity?
# - Output rate up 8 times, TPOT up 7.5 times: is that server good? For whom?
# - What does the queue do to TTFT once the KV pool is full, and what to TPOT?
# - The output rate is highest at 128 users. Why may 64 be the better place to run at?
#
# Next: lab 07 catches benchmarks that lie.
