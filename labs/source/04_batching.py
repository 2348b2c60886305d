# %% [markdown] name="title" covers=["B2", "A6"]
# # 04 · Batching: who shares a step
#
# You will race two schedulers on the same requests, here for real and on a simulated GPU, find the
# one number that says what static batching loses, and write the heart of a modern scheduler
# yourself. About 50 minutes.
#
# **Answer this first**, on paper or aloud:
#
# > A server can run four requests at once. Twelve are waiting. How do static and continuous batching
# > serve them, how much faster is the second, and when is it no faster at all?

# %% [markdown] name="slots"
# ## Slots
#
# One decode step writes one token for *every* request in the batch, at about the price of one
# (lab 02). A scheduler has a number of places in that batch, vLLM's `max_num_seqs`; call them slots.
#
# - **Static batching** fills the slots, and fills them again when the *last* of the batch is done.
# - **Continuous batching** looks after every step: who is done leaves, who waits comes in.
#
# Here are twelve requests for four slots. All have short prompts. One in four writes a long answer.

# %% name="setup"
from llmlab.check import check, current_student, find_item
from llmlab.engine import load_model
from llmlab.labs.own_scheduler import Pending, check_plan_step, scheduler_from
from llmlab.labs.pace import pick
from llmlab.viz.exercise import attempt, print_prompt
from llmlab.viz.figures.race import show_race
from llmlab.viz.figures.step_gantt import GANTT_HEAD, gantt_rows, step_gantt
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import RacePanel, WorksheetPanel
from llmlab.viz.race import harmonic as library_harmonic
from llmlab.viz.race import race_real, speed_up
from llmlab.viz.show import live_figure, shown_table

name = pick("smollm2-135m", "tiny")
with loading_bar(name) as progress:
    model = load_model(name, progress=progress)
long, short = pick((40, 5), (12, 3))
lengths = [long, short, short, short] * 3
print("output tokens:", lengths)

# %% [markdown] name="predict"
# ## Predict
#
# Four slots, in this order, a step writes one token for each slot in use. Before you run anything:
#
# 1. How many steps does static batching need for all twelve?
# 2. How many could the best scheduler need at least? (Add up the tokens; four a step.)
# 3. A *short* request that is in the second batch: when does it end, under each policy?

# %% [markdown] name="run"
# ## Run
#
# The real engine, the real model, first one policy, then the other. Each lane is a slot; a blank in
# it is a slot that writes nothing. The dotted line is the end of the last step.

# %% name="race" covers=["B2"]
race_real(model, [2] * 4, slots=4)  # a warm-up: whoever runs first would pay for it
laps = race_real(model, lengths, slots=4)
show_race(laps)

# %% [markdown] name="look"
# ## Look
#
# The same in text: each row a policy. *Busy slots* is the share of slots, over all steps, that
# computed anything.

# %% name="race_text" covers=["B2"]
for lap in laps:
    print(
        f"{lap.policy:<11} {len(lap.trace.steps):3d} steps, {100 * lap.busy:3.0f} % of the slots busy, "
        f"{lap.ms:6.0f} ms, half of the requests done after {lap.median_e2e:.0f} ms"
    )

# %% [markdown] name="explain" covers=["B2"]
# ## Explain
#
# **Static.** Each batch lasts as long as its longest member, so three batches take three long
# answers, one after the other. Three of the four slots are blank most of the time. Those who came
# later pay: they wait for a stranger's long answer before they even begin.
#
# **Continuous.** A slot that becomes free is filled at the next step. The short requests flow past
# the long ones. Now the long answers are what remains at the end.
#
# Two things it does *not* do. It makes no step faster: the same model runs the same kernels. And a
# long answer still holds its slot, and its KV cache, long after its quick first token.
#
# Look closely at the start of each new request in the lower block. A prompt is computed in a step of its
# own, and in that step nobody else gets a token. With short prompts you hardly see it. With long
# ones it is the stall that lab 05 is about.

# %% [markdown] name="turn"
# ## Turn the knobs
#
# The same race on a simulated GPU, where you may turn everything at once. Find out, and say why before you
# go on:
#
# - lengths *fixed*: how much faster is continuous batching?
# - lengths *exponential*: what happens to the factor as you give more slots?
# - *one long in each batch*: how many slots make the factor largest?
#
# Switch *Where* to this machine to check one of the answers on the real engine; Run starts it.

# %% name="panel" covers=["B2"]
panel = RacePanel(model)
panel

# %% [markdown] name="turn_text"
# The same without widgets, with sizes you can edit:

# %% name="panel_text"
for kind in ("fixed", "exponential", "one long in each batch"):
    static, continuous = panel.run(slots=8, requests=64, mean=32, kind=kind)
    print(f"{kind:<23} static / continuous = {static.ms / continuous.ms:.2f}  (simulated)")

# %% [markdown] name="turn_explain" covers=["B2"]
# *Fixed*: all of a batch end together, so no slot waits, and the factor is 1. *One long in each batch*: the more
# slots, the more short answers wait for each long one, and the factor grows; until the requests hardly fill
# a few batches. With all of them in *one* batch nobody is left to come in, and both policies are the same. And
# *exponential*? That one has a formula.

# %% [markdown] name="harmonic" covers=["B2"]
# ## How much exactly? The harmonic number
#
# Say answers have exponential lengths with mean $m$, and $B$ slots decode in equal steps. A static
# batch of $B$ lasts as long as the *longest* of $B$ draws. Wait for the first of the $B$ to end: that takes
# $m/B$ on average, since any of $B$ may be first. Then $B-1$ are left, each as if it had just begun (an
# exponential length does not remember how long it has lasted), and so on:
#
# $$\frac{E[\max]}{m} = \frac1B + \dots + \frac12 + 1 = H_B$$
#
# Continuous batching keeps all slots full, so it needs $m$ steps for what takes static batching
# $H_B \cdot m$. The factor between them is the **harmonic number** $H_B$. At fixed lengths the longest is
# as long as all others, and the factor is 1.


# %% name="harmonic_exercise" covers=["B2"]
def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n, for n >= 1."""
    ### BEGIN SOLUTION
    return sum(1 / k for k in range(1, n + 1))
    ### END SOLUTION


# %% [markdown] name="harmonic_look"
# Now hold the formula against the two schedulers. Equal steps, prompts that cost nothing, hundreds of
# batches of random lengths: nothing here is fitted.

# %% name="harmonic_run" covers=["B2"]
batches = pick({4: 600, 8: 400, 16: 250, 32: 150, 64: 100}, {4: 100, 8: 60})
formulas = attempt(
    "harmonic",
    lambda: [harmonic(slots) for slots in batches],
    instead=lambda: [library_harmonic(slots) for slots in batches],
)
print("slots   formula   exponential   fixed")
for (slots, count), formula in zip(batches.items(), formulas, strict=True):
    drawn, fixed = speed_up("exponential", slots, count), speed_up("fixed", slots, 10)
    print(f"{slots:5d} {formula:9.2f} {drawn:13.2f} {fixed:7.2f}")

# %% name="harmonic_proof" tags=["solution-only"]
assert [round(harmonic(n), 2) for n in (1, 4, 8, 16, 32, 64)] == [1, 2.08, 2.72, 3.38, 4.06, 4.74]
assert abs(speed_up("exponential", 8, 200) / harmonic(8) - 1) < 0.05
assert abs(speed_up("fixed", 8, 10) - 1) < 0.01

# %% [markdown] name="harmonic_explain" covers=["B2"]
# The factor grows with the number of slots, slowly and without end: a wider batch has a worse worst
# member. With equal steps it depends on the slots and on how *unequal* the lengths are, and on nothing else:
# not on the model, not on the GPU. When somebody claims more than the longest over the mean, other things
# changed too: memory for more requests at once (lab 03), prompts, or the load. Ask for them.
#
# Why was the real race not at $H_4$? Its lengths were not exponential: the longest over their mean was
# 40 / 13.75, or 2.9. It stayed below that, because twelve requests are three batches, not hundreds: the end, when
# slots run dry, counts; and prompts take steps.

# %% [markdown] name="budget" covers=["A6"]
# ## One scheduler, one budget
#
# What decides who shares a step? Not two stages, one for prefill and one for decode. There is one
# loop, and each step has **one token budget**, vLLM's `max_num_batched_tokens`:
#
# 1. every request that decodes takes its next token: one each;
# 2. what is left of the budget goes to prompts, in order, cut where the budget ends.
#
# A prefill is only a request that has many tokens left to compute.
#
# ```text
#   budget 16        step 1             step 2             step 3
#   request A        d                  d                  d            decodes
#   request B        d                  d                  d            decodes
#   request C  (30)  pppppppppppppp     pppppppppppppp     pp  -> first token
#   request D  (20)                                        pppppppppppp
#                    2 + 14             2 + 14             2 + 2 + 12
# ```
#
# No step is larger than the budget, none leaves budget unused while somebody misses tokens, and A
# and B get a token in each.
#
# ## Write it
#
# `pending` lists the requests in order of admission; each has `missing`, the tokens not computed
# yet, and `decodes`. Return how many tokens each gets in this step, in the same order.
#
# - A request that decodes misses exactly one token. If the budget is short even of those, the first
#   in order get theirs.
# - A prompt gets as much as it misses or as is left. Nobody overtakes: a later prompt gets something only
#   if all earlier ones get all they miss.


# %% name="plan_exercise" covers=["A6"]
def plan_step(pending: list[Pending], budget: int) -> list[int]:
    """Tokens for each of `pending` in this step: decodes first, the rest to prompts in order."""
    ### BEGIN SOLUTION
    given = [0] * len(pending)
    for turn_of_decodes in (True, False):
        for i, request in enumerate(pending):
            if request.decodes == turn_of_decodes:
                given[i] = min(request.missing, budget)
                budget -= given[i]
    return given
    ### END SOLUTION


# %% name="plan_look"
from llmlab.labs.own_scheduler import plan_step as library_plan_step

picture = [Pending(1, True), Pending(1, True), Pending(30, False), Pending(20, False)]
attempt(
    "plan_step",
    lambda: plan_step(list(picture), 16),
    instead=lambda: library_plan_step(picture, 16),
)

# %% [markdown] name="plan_check_intro"
# Is that step 1 of the picture? Then try it on 500 random steps. The first one that goes wrong is shown.

# %% name="plan_check" covers=["A6"]
check_plan_step(plan_step)

# %% [markdown] name="own_intro"
# ## Your scheduler drives the engine
#
# Around your function the library puts what a scheduler also needs: queue, KV blocks, preemption. The
# result is a scheduler like any other. Here it serves real requests, three chats and a long prompt,
# with a budget small enough to see the chunks.

# %% name="own_engine" covers=["A6"]
from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.sched import Chunked, SamplingParams

config = EngineConfig(max_num_batched_tokens=32, max_num_seqs=8, max_model_len=512)
prompts = [12, 12, pick(200, 100), 12]  # tokens


def serve(scheduler):
    """Run the four prompts; the engine, and each request's output tokens."""
    engine = Engine(model, config, scheduler)
    tokens = {}
    for number, size in enumerate(prompts):
        ids = [(17 * number + 5 * i) % model.config.vocab_size for i in range(size)]
        engine.add(ids, SamplingParams(max_tokens=12, ignore_eos=True), request_id=f"r{number}")
    while engine.has_work:
        for out in engine.step():
            tokens.setdefault(out.request_id, []).extend(out.token_ids)
    return engine, tokens


mine, my_tokens = attempt(
    "plan_step",
    lambda: serve(scheduler_from(plan_step)),
    instead=lambda: serve(Chunked),
)
figure = live_figure(step_gantt(mine.trace, config.max_num_batched_tokens))
shown_table("What each step computed", GANTT_HEAD, gantt_rows(mine.trace), figure)

# %% [markdown] name="own_explain" covers=["A6"]
# While the long prompt lasts, steps are *mixed*: blue prompt tokens fill what the orange decode tokens
# leave of the budget (the dotted line). A scheduler may only change *when* something is computed, never
# *what*. So the answers must be those of the library's scheduler, token for token:

# %% name="own_same" covers=["A6"]
_, library_tokens = serve(Chunked)
same = sum(my_tokens[r] == library_tokens[r] for r in library_tokens)
print(f"{same} of {len(library_tokens)} answers are the same")

# %% name="own_proof" tags=["solution-only"] covers=["A6"]
import random

from llmlab.labs.own_scheduler import random_case
from llmlab.sim.load import poisson_arrivals
from llmlab.sim.simulate import simulate

assert same == len(library_tokens)
assert check_plan_step(plan_step).state == "correct"
rng = random.Random(4)
for _ in range(200):
    case, tokens = random_case(rng)
    assert plan_step(list(case), tokens) == library_plan_step(case, tokens)
load = poisson_arrivals(20.0, 40, [("chat", 64, 32), ("document", 1500, 8)])
ends = [
    simulate(load, "llama-3.1-8b", "h100-sxm", policy=p, max_num_batched_tokens=256).steps[-1].t_end
    for p in (scheduler_from(plan_step), Chunked)
]
assert ends[0] == ends[1]

# %% [markdown] name="sheet" covers=["B2", "A6"]
# ## Worksheet
#
# Two small schedules, on paper.

# %% name="sheet_panel" covers=["B2", "A6"]
worksheet = WorksheetPanel("b2", "a6")
worksheet

# %% [markdown] name="sheet_code_intro"
# The first of each in code, if you like that better:

# %% name="b2_steps" covers=["B2"]
item = find_item("B2.steps")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: steps = ...
steps = numbers["long"]
### END SOLUTION
check("B2.steps", steps)

# %% name="a6_share" covers=["A6"]
item = find_item("A6.prompt-share")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: share = ...
share = numbers["budget"] - numbers["running"]
### END SOLUTION
check("A6.prompt-share", share)

# %% name="worked" tags=["solution-only"] covers=["B2", "A6"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for sheet in ("b2", "a6"):
    for item in load_worksheet(sheet):
        result = check(item.id, solution(item.id, current_student()))
        print(f"{result.glyph} {item.id:<24} = {item.spec.answer}")
        assert result.state == "correct", item.id

# %% [markdown] name="wrap" covers=["A6", "B2"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > Static batching ends with its longest member; continuous batching refills a slot at the next step. The
# > factor is the longest length over the mean: $H_B$ for exponential lengths, 1 when all are equal.
#
# The full answer adds three things. It is a gain of *slots kept busy*, not of faster steps. Those
# who queue gain most, since they no longer wait for a stranger's long answer. And it brings a new
# question: a newcomer's prompt has to be computed *somewhere*. In a step of its own it stalls all others;
# cut to one shared budget it stretches many steps a little.
#
# **Interview questions this lab prepares**
#
# - Why does a static batch waste capacity, and which traffic makes it waste none?
# - What does vLLM's scheduler have instead of a prefill stage and a decode stage?
# - A request had its first token long ago. What does it still hold?
# - Continuous batching doubled the tokens per second. Did any step get faster?
#
# Next: lab 05 puts long documents beside chats, and turns the budget.
