# %% [markdown] name="title" covers=["A0", "A1", "C1"]
# # 01 · One request, two phases
#
# You will send a real prompt to a real model on this machine, see where its time goes, write the loop
# that turns a prompt into an answer, and read the four numbers that people feel. About 60 minutes. No
# GPU needed.
#
# **Answer this first**, on paper or aloud, before you run anything:
#
# > A chat request arrives at an LLM server. What does the processor do from that moment until the
# > last token? Name the phases, and the numbers you would put on a dashboard for each.
#
# Keep your answer. You will grade it yourself at the end.
#
# The deployment behind this lab, and behind the series wherever a lab says nothing else, is the plainest
# one that is real: a dense decoder-only transformer with full attention, one processor, one scheduler, for
# short chats mixed with long documents. No prefix cache hits, no offload, no speculation.

# %% [markdown] name="start"
# ## Start the engine
#
# The first load unpacks the model and keeps the result on disk; the next one takes a few seconds.

# %% name="load" covers=["C1"]
from llmlab.check import check, current_student, find_item
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.labs.company import Guest, serve, show_clock, show_company
from llmlab.labs.company import clock as library_clock
from llmlab.labs.handoff import Passes, check_generate, show_passes
from llmlab.labs.handoff import generate as library_generate
from llmlab.labs.pace import pick
from llmlab.measure.own_run import check_own
from llmlab.measure.per_request import request_metrics
from llmlab.perf.calibrate import cost_model
from llmlab.sched import SamplingParams
from llmlab.viz.exercise import attempt, print_prompt
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import KnobPanel, RequestPanel, WorksheetPanel, show_request

with loading_bar("SmolLM2-135M") as progress:
    model = load_model("smollm2-135m", progress=progress)
engine = Engine(model, config=EngineConfig(max_num_batched_tokens=128, max_model_len=1024))
shape = model.config
print(
    f"{shape.name}: {shape.num_hidden_layers} layers, experts: {shape.num_experts or 'none, dense'}"
)
print(f"prefix cache: {'on' if engine.config.enable_prefix_caching else 'off'}")

# %% [markdown] name="predict"
# ## Predict
#
# You are about to ask a question of about 40 prompt tokens and let the model answer with up to 32
# tokens. Write your guesses before you run the next cell: they cost nothing and teach the most.
#
# - How many passes through the model does it take to read the prompt?
# - How many passes to write 32 tokens?
# - Which takes longer: the first token, or the 31 after it?
# - Reading the prompt is one pass over 40 tokens, a step of the answer one pass over one token. How many
#   times as long does the first take?

# %% [markdown] name="run"
# ## Run
#
# Each piece of text is printed when the engine emits its token.

# %% name="stream" covers=["A1", "C2"]
question = "In one sentence: why does a kettle whistle when the water boils?"
ids = engine.tokenizer.chat([{"role": "user", "content": question}])
print(len(ids), "prompt tokens")
for out in engine.stream(ids, SamplingParams(max_tokens=32)):
    print(out.text, end="", flush=True)

# %% [markdown] name="look"
# ## Look
#
# The engine wrote down when every step began and ended. Nothing below is estimated.

# %% name="timeline"
show_request(engine.trace)

# %% [markdown] name="passes_intro"
# Now pass by pass. Times are measured. The work is counted, from the shape of the model and of the step:
# arithmetic (FLOPs) and the bytes that have to be read and written for it.

# %% name="passes" covers=["A1", "A2", "C2"]
last = list(engine.trace.requests)[-1]
show_passes(engine.trace, last, cost_model(model))

# %% [markdown] name="explain" covers=["A1", "A2", "C2"]
# ## Explain
#
# Read the picture from left to right, and the table from top to bottom.
#
# 1. **Preprocessing.** Text becomes token ids.
# 2. **Queue.** The request waits for its first step. Alone on the machine, that is almost nothing.
# 3. **Prefill.** All prompt tokens go through the model in one pass (or in a few chunks). Their keys
#    and values are written to the **KV cache**, and the logits of the *last* prompt token choose the
#    first output token.
# 4. **Decode.** One pass per output token: the newest token goes in, its keys and values are appended
#    to the cache, the cache is read, one token comes out.
#
# The column MB hardly changes: every pass reads all weights, whether for 40 tokens or for one. GFLOP does
# change, with the tokens in the pass. So this prefill does many times more arithmetic *for each byte* than
# a decode step: that is the whole difference between the two, and it is one of degree. A prompt of one token
# would be computed just like a decode step. Hold the ms of pass 1 and pass 2 against your guess: forty times the
# tokens, and how many times the time?
#
# The handoff in one line: *prompt tokens → prompt KV → first token*; then again and again *latest
# token + cached KV → appended KV → next token*.

# %% [markdown] name="write" covers=["C2"]
# ## Write it: the handoff
#
# `forward(tokens)` is one pass: it computes `tokens`, appends their keys and values to the cache, and
# returns the token that comes after the last of them. What is cached stays cached.
#
# ```text
#   pass    tokens in                KV cache after it                gives
#   1       The kettle whistles      The kettle whistles              because
#   2       because                  The kettle whistles because      steam
#   3       steam                    The ... because steam            escapes
# ```
#
# Write the loop. `count` is 1 or more. Make no pass that nobody needs.


# %% name="generate_exercise" covers=["C2"]
def generate(forward, prompt: list[int], count: int) -> list[int]:
    """`count` tokens that continue `prompt`; forward(tokens) -> the next token."""
    ### BEGIN SOLUTION
    answer = [forward(prompt)]  # prefill: all at once
    while len(answer) < count:
        answer.append(forward(answer[-1:]))  # decode: the newest token only
    return answer
    ### END SOLUTION


# %% name="generate_check" covers=["C2"]
check_generate(generate)

# %% [markdown] name="generate_look"
# Now with the real model, and against the engine's answer to the same question.

# %% name="generate_run" covers=["A1", "C2"]
count = pick(24, 6)
hand = Passes(model)
tokens = attempt(
    "generate",
    lambda: generate(hand.forward, ids, count),
    instead=lambda: library_generate(hand.forward, ids, count),
)
engines = [t for o in engine.stream(ids, SamplingParams(max_tokens=count)) for t in o.token_ids]
print(f"{len(tokens)} tokens in {len(hand.log)} passes, the engine's own: {tokens == engines}")

single = Passes(model)  # the same prompt, one token a pass
for token in ids:
    first = single.forward([token])
whole, one_by_one = hand.log[0][1], sum(ms for _, ms in single.log)
print(f"the prompt in one pass     {whole:6.0f} ms")
print(f"the prompt token by token  {one_by_one:6.0f} ms, {len(ids)} passes")
print(f"the same first token: {first == tokens[0]}")

# %% name="generate_proof" tags=["solution-only"] covers=["C2"]
assert check_generate(generate).state == "correct"
assert tokens == engines
assert len(hand.log) == count
assert first == tokens[0]

# %% [markdown] name="generate_explain" covers=["A1", "C2"]
# The prompt may go through in one pass because all of it is *known*. Its keys and values, and so the first
# token, are the same either way; only the time differs. The answer is not known. Each of its tokens goes in
# only after it has come out, so prefill in parallel does not write the answer in parallel.

# %% [markdown] name="four" covers=["A3", "C10"]
# ## Four numbers, and who feels each
#
# | number | what it is | who feels it |
# | --- | --- | --- |
# | **TTFT**, time to first token | first token − send | whoever waits for the answer to start |
# | **TPOT**, time per output token | mean gap after the first token | whoever reads a long answer |
# | **ITL**, inter-token latency | each single gap; its P99 shows stalls | whoever sees the text freeze |
# | **Output tokens/s** | output tokens of the whole server / time | whoever pays for the machine |
#
# They are always shown together. With *N* tokens there are *N − 1* gaps: the first token ends the wait, it
# does not end a gap.
#
# These are the formulas this lab uses everywhere:
#
# - $\text{TTFT} = t_\text{first} - t_\text{send}$; where a model reasons before it answers, the time to the
#   first *answer* token, `ttfat`, stands beside it
# - $\text{TPOT} = (t_\text{last} - t_\text{first}) / (N - 1)$ for $N > 1$; with one token there is none
# - stream rate $= 1 / \text{TPOT}$; output rate $=$ output tokens $/$ the stated interval
#
# ### Why together?
#
# One chat in three situations: alone; as one of four that start together; and alone until a long prompt of
# somebody else arrives in the middle of its answer. Decide first: in which of them does its *TTFT* move, its
# *TPOT*, its *longest gap*, and what does the server's rate do meanwhile?

# %% name="company" covers=["A2", "A3"]
out = pick(64, 16)
show_company(
    {
        "alone": serve(model, out),
        "one of four": serve(model, out, [Guest(0, 40, out)] * 3),
        "joined by a long prompt": serve(model, out, [Guest(out // 2, pick(400, 100), 1)]),
    }
)

# %% [markdown] name="company_explain" covers=["A2", "A3"]
# Look for three things in your own figures.
#
# - *One of four*: the server writes more tokens per second while every chat waits longer for each. A throughput
#   alone would call that an improvement, a TPOT alone a loss. It is both.
# - *One of four*: four tokens a step do not take four times as long. A step reads the weights once,
#   for one or for four (lab 02 measures how far that goes).
# - *Joined by a long prompt*: TTFT knows nothing of it, since the chat had its first token long before. One gap
#   is many times the mean. TPOT spreads that gap over all the others; the ITL shows it. On a server with
#   many gaps you look at their P99; with the few of one chat, at the longest.

# %% [markdown] name="play"
# ## Your own prompt
#
# Type, run, watch the bars grow. *Stop* ends the request within half a second and gives its KV
# blocks back.

# %% name="panel"
panel = RequestPanel(engine, prompt="Explain to a ten-year-old why the sky is blue.")
panel

# %% [markdown] name="turn" covers=["A1", "A2"]
# ## Turn the knobs
#
# Which of the four numbers moves when the *prompt* gets eight times as long? Which when the *answer*
# gets four times as long? Decide first. Then move one knob at a time; every change sends one real request.

# %% name="knobs"
knobs = KnobPanel(engine)
knobs

# %% [markdown] name="turn_text"
# The same without widgets, and with sizes you can edit:

# %% name="knobs_text"
for prompt_tokens, output_tokens in pick([(32, 8), (256, 8), (32, 32)], [(32, 8), (32, 16)]):
    print(knobs.run(prompt_tokens, output_tokens))

# %% [markdown] name="turn_explain" covers=["B15"]
# ### What moved, and why
#
# A longer prompt is more work *before* the first token, so TTFT grows. A longer answer adds passes
# *after* it, so E2E grows while TTFT and TPOT stay about where they were. On a long context TPOT
# creeps up too: each decode step reads the whole cache. How much, on this machine? Try 512 prompt
# tokens and look.
#
# Two sentences to stop believing here: "TTFT is the prefill kernel's time" (it holds the queue and
# the preprocessing too) and "prefill is always limited by arithmetic, decode always by memory"
# (the next lab measures it, and finds both exceptions).
#
# ### Drop one assumption
#
# A longer prompt, a later first token: that holds for *this* deployment. Turn the prefix cache on, and the same
# prompt, sent again, is found.

# %% name="assumption" covers=["C1"]
for caching in (False, True):
    config = EngineConfig(max_model_len=512, enable_prefix_caching=caching)
    other = Engine(model, config)
    prompt = list(range(100, pick(356, 164)))  # any tokens will do
    for turn in ("first ", "second"):
        before = len(other.trace.steps)
        for _ in other.stream(prompt, SamplingParams(max_tokens=1)):
            pass
        computed = sum(n for step in other.trace.steps[before:] for _, n, *_ in step.scheduled)
        ttft = request_metrics(list(other.trace.requests.values())[-1]).ttft
        print(
            f"prefix cache {'on ' if caching else 'off'}, {turn} time: {computed:3d} of "
            f"{len(prompt)} prompt tokens computed, TTFT {ttft:6.1f} ms"
        )

# %% [markdown] name="assumption_explain" covers=["C1"]
# A claim about what grows with what belongs to the deployment in which it was seen. Say which one.

# %% [markdown] name="own" covers=["A3", "C10"]
# ## Your own numbers
#
# Now compute TTFT, TPOT, E2E and the stream rate of *your* last run yourself, from the raw stamps that
# the engine kept. `sent` and `stamps` are in milliseconds; `stamps` holds one entry per token. Replace each `...`.

# %% name="own_stamps"
record = [r for r in engine.trace.requests.values() if len(r.events) > 3][-1]
sent = record.t_send / 1e6
stamps = [event.t / 1e6 for event in record.events]
print(f"{record.prompt_tokens} prompt tokens, {len(stamps)} output tokens")
print(f"sent at {sent:.1f} ms, first token at {stamps[0]:.1f} ms, last at {stamps[-1]:.1f} ms")

# %% name="own_ttft" covers=["C10"]
### BEGIN SOLUTION stub: my_ttft_ms = ...
my_ttft_ms = stamps[0] - sent
### END SOLUTION
check_own(record, "ttft", my_ttft_ms)

# %% name="own_tpot" covers=["C10"]
### BEGIN SOLUTION stub: my_tpot_ms = ...
my_tpot_ms = (stamps[-1] - stamps[0]) / (len(stamps) - 1)
### END SOLUTION
check_own(record, "tpot", my_tpot_ms)

# %% name="own_e2e" covers=["C10"]
### BEGIN SOLUTION stub: my_e2e_ms = ...
my_e2e_ms = stamps[-1] - sent
### END SOLUTION
check_own(record, "e2e", my_e2e_ms)

# %% name="own_rate" covers=["C10"]
### BEGIN SOLUTION stub: my_rate_tokens_per_s = ...
my_rate_tokens_per_s = 1000 / my_tpot_ms
### END SOLUTION
check_own(record, "rate", my_rate_tokens_per_s)

# %% [markdown] name="events" covers=["C10"]
# ### When an event carries several tokens
#
# Here each streamed event carries exactly one token, so an event gap *is* a token gap. Many servers send
# several at a time. The same run, as a client would have stamped it that gets three tokens an event:

# %% name="events_run" covers=["C10"]
chunks = [stamps[i : i + 3] for i in range(0, len(stamps), 3)]
seen = [chunk[-1] for chunk in chunks]  # an event leaves when its last token is there
after_first = len(stamps) - len(chunks[0])
print("tokens in each event:", [len(chunk) for chunk in chunks])
print(f"first event after {seen[0] - sent:6.1f} ms (first token after {stamps[0] - sent:.1f} ms)")
print(f"mean gap of events  {(seen[-1] - seen[0]) / (len(seen) - 1):6.1f} ms")
print(
    f"mean gap per token  {(seen[-1] - seen[0]) / after_first:6.1f} ms, chunk-normalized estimate"
)

# %% [markdown] name="events_explain" covers=["C10"]
# The mean gap of events is about three times a token's: a histogram of it is no per-token timing. Divided by
# the tokens after the first event it comes near the TPOT again, as an **estimate**: when the tokens came
# *within* an event, nobody saw. So write down the sizes of the events, and label the figure as
# chunk-normalized.

# %% [markdown] name="clock" covers=["B11", "B12"]
# ## The clock, added up
#
# ```text
#   send                                first token                            last token
#     |-- queue --|-- preproc. --|-- prefill --|-- gap --|-- gap --| ... |-- gap --|
#     |<---------------- TTFT ---------------->|
#     |<---------------------------------- E2E ---------------------------------->|
# ```
#
# (Queue and preprocessing may come in either order.) Predict: two equal requests are sent together, and there
# is **one** seat, `max_num_seqs=1`. Which of the second one's TTFT, mean gap and E2E differ from the
# first one's, and by how much?

# %% name="clock_run" covers=["B11", "B12"]
queued = serve(model, pick(32, 10), [Guest(0, 40, pick(32, 10))], max_num_seqs=1)
show_clock(queued)

# %% [markdown] name="clock_explain" covers=["B12"]
# Add up each row: the three parts are the TTFT, and TTFT plus gaps times mean gap is the E2E. The second request's
# TTFT and E2E are later by its queue, both by the same. Its gaps are what they were (but for this machine's
# jitter): who waits in the queue feels it once.
#
# Write the clock.


# %% name="clock_exercise" covers=["B11", "B12"]
def clock(
    wait: float, preprocessing: float, prefill: float, tokens: int, gap: float
) -> tuple[float, float]:
    """TTFT and E2E, both in ms, of a request with equal gaps, one token per gap."""
    ### BEGIN SOLUTION
    ttft = wait + preprocessing + prefill
    return ttft, ttft + (tokens - 1) * gap
    ### END SOLUTION


# %% name="clock_try" covers=["B11", "B12"]
m = request_metrics(list(queued.requests.values())[-1])
parts = (m.queue, m.preprocessing, m.prefill, m.n, m.tpot)
computed = attempt("clock", lambda: clock(*parts), instead=lambda: library_clock(*parts))
print(f"from its parts: TTFT {computed[0]:.1f} ms, E2E {computed[1]:.1f} ms")
print(f"measured:       TTFT {m.ttft:.1f} ms, E2E {m.e2e:.1f} ms")

# %% [markdown] name="sheet" covers=["A3", "B11", "B12", "C10"]
# ## Worksheet
#
# Work on paper or in Python; type a number with its unit (`12 ms`, `0.012 s`). Every answer is checked
# at once. A wrong one is named if it is a known mistake, and hints go deeper each time.
#
# The items assume one visible token per gap.

# %% name="sheet_panel" covers=["A3", "B11", "B12", "C10"]
worksheet = WorksheetPanel("a3", "b11", "b12", "c10")
worksheet

# %% [markdown] name="in_code"
# Prefer code to a form? The same items take an answer from a cell. Here are two of them, for your `clock`
# or for plain arithmetic; the story is printed, and `numbers` holds its numbers by name.

# %% name="b11_story" covers=["B11"]
item = find_item("B11.ttft")
numbers = item.parameters_for(current_student())
print_prompt(item)
print_prompt(find_item("B11.e2e"))
numbers

# %% name="b11_ttft" covers=["B11"]
### BEGIN SOLUTION stub: ttft_ms = ...
ttft_ms, _ = clock(numbers["wait"], numbers["preprocessing"], numbers["prefill"], 1, 0)
### END SOLUTION
check("B11.ttft", ttft_ms)

# %% name="b11_e2e" covers=["B11"]
### BEGIN SOLUTION stub: e2e_ms = ...
e2e_ms = ttft_ms + (numbers["tokens"] - 1) * numbers["gap"]
### END SOLUTION
check("B11.e2e", e2e_ms)

# %% [markdown] name="trade" covers=["B11"]
# ### Was the change worth it?
#
# In that story a change shortens the prefill and lengthens every gap. One number says where it turns:

# %% name="trade_run" covers=["B11"]
saved = numbers["prefill"] - numbers["prefill_after"]
added = numbers["gap_after"] - numbers["gap"]
print(f"{saved:g} ms sooner at the first token, {added:g} ms later at each gap after it")
print(f"the head start is used up after {saved / added:.2f} gaps")

# %% [markdown] name="trade_explain" covers=["A3", "B11"]
# An answer with fewer gaps ends sooner than before, one with more ends later. TTFT alone praises the change;
# a reader of a long answer would send it back. That is why a change is judged on all four numbers, for the
# answers that *your* users get.

# %% name="worked" tags=["solution-only"] covers=["A3", "B11", "B12", "C10"]
# Every item of the worksheet with its formula, checked like a student's answer.
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for sheet in ("a3", "b11", "b12", "c10"):
    for item in load_worksheet(sheet):
        result = check(item.id, solution(item.id, current_student()))
        print(f"{result.glyph} {item.id:<22} = {item.spec.answer}")
        assert result.state == "correct", item.id

# %% [markdown] name="wrap" covers=["A0", "A1", "A2", "A3", "C2"]
# ## Wrap-up
#
# Back to the question you answered before you began. The short answer:
#
# > Two phases. **Prefill** computes the whole prompt in one or a few passes, writes its keys and
# > values to the cache and gives the first token. **Decode** makes one token per pass, each pass
# > reading all weights and the request's cache. On the dashboard: TTFT for the first, TPOT and the
# > ITL's P99 for the second, output tokens/s for the machine.
#
# The full answer adds what you saw. TTFT is more than prefill: queue and preprocessing stand before
# it, and on a busy server the queue can be most of it. Prefill does a lot of arithmetic per byte it
# reads; decode reads every weight for one token per request, so on a dense model more requests in
# a step cost little until a knee. Which limit holds where is a measurement, not a rule.
#
# What did your own answer miss? Write it down: it is what you will remember.
#
# **Interview questions this lab prepares**
#
# - Which number matters most to someone who reads a long answer, and which shows stalls?
# - A request has 21 tokens. How many gaps? Why is it not 21?
# - The queue doubles. Which of the four numbers change, and by how much?
# - Why can the prompt be computed in parallel, but not the answer?
#
# Next: lab 02 measures the two phases against the limits of your machine.
