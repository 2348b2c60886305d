# %% [markdown] name="title"
# # 00 · Start here
#
# Ten minutes: meet your machine, calibrate the simulator to it, and learn the two things you will
# use in every lab: a panel and the checker.
#
# **Answer this first**: how many tokens per second do you expect a 135-million-parameter model to
# write on this machine, alone? Write the number down. You will see the real one in a moment.
#
# How every lab goes: a question to answer *before* you run anything, then **predict, run, look,
# explain, check**. A wrong prediction costs nothing and teaches the most. Run the cells from top to
# bottom with Shift+Enter.

# %% [markdown] name="doctor"
# ## Your machine
#
# Two measured rates decide most of what follows: how fast memory is read and how fast matrices are
# multiplied. Close what else computes first; a busy machine is measured as a slow one.

# %% name="examine"
from llmlab.cli.doctor import examine, page
from llmlab.labs.pace import pick

page(examine(repeats=pick(7, 3)))

# %% [markdown] name="calibrate"
# ## Calibrate the simulator
#
# Some labs ask what a data-centre GPU would do. That part is *simulated*, and says so on the screen:
# the same scheduler runs under a virtual clock, with step times from a cost model. Here the cost model
# is fitted to real steps of the real engine on this machine, so that you can hold simulation and
# reality side by side. It takes under a minute and is kept for later.

# %% name="fit"
from llmlab.cli.calibrate import page as fitted
from llmlab.cli.calibrate import run as calibrate

kept = calibrate(pick("smollm2-135m", "tiny"), pick(40.0, 5.0))
fitted(kept)

# %% [markdown] name="first_tokens"
# ## The first tokens
#
# The model is SmolLM2-135M-Instruct; everything it computes, it computes here.

# %% name="load"
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.measure.per_request import request_metrics
from llmlab.sched import SamplingParams
from llmlab.viz.notebook import loading_bar

with loading_bar("SmolLM2-135M") as progress:
    model = load_model("smollm2-135m", progress=progress)
engine = Engine(model, config=EngineConfig(max_num_batched_tokens=128, max_model_len=1024))

# %% name="rate"
ids = engine.tokenizer.chat([{"role": "user", "content": "Write a sentence about the sea."}])
for out in engine.stream(ids, SamplingParams(max_tokens=24)):
    print(out.text, end="", flush=True)
record = list(engine.trace.requests.values())[-1]
rate = request_metrics(record).stream_rate
print(f"\n\n{rate:.0f} tokens per second, alone on this machine")

# %% [markdown] name="panel_text"
# How far was your guess? A factor of two is good for a first one.
#
# ## A panel
#
# Panels do real work. Move a knob with the mouse, or click on it and use the arrow keys; or type into
# the box. *Stop* stops within half a second. Each panel shows a table with the same numbers as its
# figure, and every lab can also be done from code alone.

# %% name="panel"
from llmlab.viz.panels import KnobPanel

knobs = KnobPanel(engine, prompt_tokens=32, output_tokens=8)
knobs

# %% name="panel_code"
print(knobs.run(64, 8))

# %% [markdown] name="checker"
# ## The checker
#
# It knows five states and always says which, with a sign and a word:
#
# | sign | state | what it means |
# | --- | --- | --- |
# | ✓ | correct | within the stated tolerance |
# | ◐ | partial | the right idea, one slip: it says which |
# | ✗ | incorrect | a known mistake is named; hints go deeper each time |
# | ○ | not answered yet | the blank is still a blank |
# | ! | error | it could not read the answer, and says what it expects |
#
# Units are understood (`0.4 s` is `400 ms`), and it shows what it read. It never shows the answer.
# These three are only looked at, not recorded:

# %% name="preview"
from IPython.display import display

from llmlab.check import check, current_student, find_item
from llmlab.check.judge import judge
from llmlab.viz.exercise import print_prompt

item = find_item("B12.gaps")
print_prompt(item)
for answer in ("quite a few", "1,5", item.parameters_for(current_student())["tokens"]):
    display(judge(item, answer, current_student()))

# %% [markdown] name="your_turn"
# Now yours: replace the dots. This one is recorded, and your best attempt counts.

# %% name="gaps"
### BEGIN SOLUTION stub: gaps = ...
gaps = item.parameters_for(current_student())["tokens"] - 1
### END SOLUTION
check("B12.gaps", gaps)

# %% [markdown] name="wrap"
# ## Wrap-up
#
# You know what this machine can do, the simulator knows it too, and you have met the checker. A blank
# looks like `...`; a code exercise raises `NotImplementedError` until you write it, and never blocks
# what comes after it: the library's own part is used then, and says so.
#
# Your progress is kept outside the notebooks, on this machine only. `llmlab labs --reset NAME` brings
# a lab back as it was shipped and keeps your copy.
#
# **Interview question this lab prepares**: what two numbers of a machine would you measure first to
# predict how fast it serves an LLM, and why those two?
#
# Next: lab 01, one request and its two phases.
