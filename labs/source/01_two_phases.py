# %% [markdown] name="title" covers=["A0", "A1", "C1"]
# # 01 · One request, two phases
#
# You will send a real prompt to a real model on this machine, see where its time goes, and read the
# four numbers that people feel. About 45 minutes. No GPU needed.
#
# **Answer this first**, on paper or aloud, before you run anything:
#
# > A chat request arrives at an LLM server. What does the processor do from that moment until the
# > last token? Name the phases, and the numbers you would put on a dashboard for each.
#
# Keep your answer. You will grade it yourself at the end.
#
# The deployment behind this lab is the plainest one that is real: a dense decoder-only transformer
# with full attention, one processor, one scheduler. No prefix cache hits, no offload, no
# speculation.

# %% [markdown] name="start"
# ## Start the engine
#
# The first load unpacks the model and keeps the result on disk; the next one takes a few seconds.

# %% name="load"
from llmlab.check import check, current_student, find_item
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.measure.own_run import check_own
from llmlab.sched import SamplingParams
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import KnobPanel, RequestPanel, WorksheetPanel, show_request

with loading_bar("SmolLM2-135M") as progress:
    model = load_model("smollm2-135m", progress=progress)
engine = Engine(model, config=EngineConfig(max_num_batched_tokens=128, max_model_len=1024))

# %% [markdown] name="predict"
# ## Predict
#
# You are about to ask a question of about 40 prompt tokens and let the model answer with up to 32
# tokens. Write your guesses before you run the next cell: they cost nothing and teach the most.
#
# - How many passes through the model does it take to read the prompt?
# - How many passes to write 32 tokens?
# - Which takes longer: the first token, or the 31 after it?

# %% [markdown] name="run"
# ## Run
#
# Each token is printed when the engine emits it.

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

# %% [markdown] name="explain" covers=["A1", "A2", "C2"]
# ## Explain
#
# Read the picture from left to right.
#
# 1. **Preprocessing.** Text becomes token ids.
# 2. **Queue.** The request waits for its first step. Alone on the machine, that is almost nothing.
# 3. **Prefill.** All prompt tokens go through the model in one pass (or in a few chunks). Their keys
#    and values are written to the **KV cache**, and the logits of the *last* prompt token choose the
#    first output token.
# 4. **Decode.** One pass per output token: the newest token goes in, its keys and values are appended
#    to the cache, the cache is read, one token comes out.
#
# The handoff in one line: *prompt tokens → prompt KV → first token*; then again and again *latest
# token + cached KV → appended KV → next token*. Prefill handles the prompt in parallel. It does not
# write the answer in parallel: each token needs the one before it.

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
# They are always shown together, since one alone hides the others. With *N* tokens there are
# *N − 1* gaps: the first token ends the wait, it does not end a gap.
#
# These are the formulas this lab uses everywhere:
#
# - $\text{TTFT} = t_\text{first} - t_\text{send}$
# - $\text{TPOT} = (t_\text{last} - t_\text{first}) / (N - 1)$ for $N > 1$; with one token there is none
# - stream rate $= 1 / \text{TPOT}$; output rate $=$ output tokens $/$ the stated interval
#
# One streamed event can carry several tokens. Here each carries exactly one, so an event gap *is* a
# token gap; where that is not so, per-token figures are estimates and have to say so.

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
# does? Decide first. Then move one knob at a time; every change sends one real request.

# %% name="knobs"
knobs = KnobPanel(engine)
knobs

# %% [markdown] name="turn_text"
# The same without widgets, and with sizes you can edit:

# %% name="knobs_text"
for prompt_tokens, output_tokens in [(32, 8), (256, 8), (32, 32)]:
    run = knobs.run(prompt_tokens, output_tokens)
    print(f"{run.label}: TTFT {run.ttft:.0f} ms, TPOT {run.tpot:.1f} ms, E2E {run.e2e:.0f} ms")

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

# %% [markdown] name="own" covers=["A3", "C10"]
# ## Your own numbers
#
# Now compute the four numbers of *your* last run yourself, from the raw stamps that the engine kept.
# `sent` and `stamps` are in milliseconds; `stamps` holds one entry per token. Replace each `...`.

# %% name="own_stamps"
record = list(engine.trace.requests.values())[-1]
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
# Prefer code to a form? The same items take an answer from a cell. Here are the first two; the
# story and its numbers are printed, and `numbers` holds them by name.

# %% name="b11_story"
item = find_item("B11.ttft")
numbers = item.parameters_for(current_student())
print(item.prompt_for(current_student()))
print(find_item("B11.e2e").prompt_for(current_student()))
numbers

# %% name="b11_ttft" covers=["B11"]
### BEGIN SOLUTION stub: ttft_ms = ...
ttft_ms = numbers["wait"] + numbers["preprocessing"] + numbers["prefill"]
### END SOLUTION
check("B11.ttft", ttft_ms)

# %% name="b11_e2e" covers=["B11"]
### BEGIN SOLUTION stub: e2e_ms = ...
e2e_ms = ttft_ms + (numbers["tokens"] - 1) * numbers["gap"]
### END SOLUTION
check("B11.e2e", e2e_ms)

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
