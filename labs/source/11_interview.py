# %% [markdown] name="title" covers=["A9", "B13", "B17"]
# # 11 · The interview
#
# Questions that people are really asked about LLM serving, the wrong answers interviewers hear, and a
# timed mock interview that ends in a report. About 60 minutes, best in two sittings.
#
# **Answer this first**, aloud, in two minutes, as you would to an interviewer:
#
# > Why can more batching raise tokens per second and make a chat feel slower?
#
# Keep what you said. You will score it below.

# %% [markdown] name="how" covers=["A9", "B13"]
# ## How to answer
#
# Two roles meet these questions. **Inference engineering** is asked *how* it works and what limits it;
# **LLM product engineering** is asked what users feel, what it costs, and what to test next. The
# questions are the same, the weight differs.
#
# In both, always in this order: answer first, aloud or on paper; then open the short answer; then the
# full one. Reading an answer feels like knowing it. It is not.
#
# A strong answer earns four points, one each:
#
# | point | for |
# | --- | --- |
# | result | it is right |
# | reasoning | the steps in between are said, not only the end |
# | failure case | where it would not hold is named |
# | check | an observation that could prove it wrong |
#
# The name of a tool alone ("I would use vLLM") earns no reasoning point.

# %% [markdown] name="checkpoint" covers=["B14"]
# ## Five checkpoint questions
#
# One letter each. Every wrong option is a real misconception, and the checker says why it is wrong.

# %% name="setup"
from llmlab.check import check
from llmlab.viz.exercise import print_question
from llmlab.viz.panels import QuizPanel

# %% name="q1" covers=["B14"]
print_question("B14.documents")

# %% name="a1" covers=["B14"]
### BEGIN SOLUTION stub: answer_1 = ...
answer_1 = "prompt-work"
### END SOLUTION
check("B14.documents", answer_1)

# %% name="q2" covers=["B14"]
print_question("B14.completion")

# %% name="a2" covers=["B14"]
### BEGIN SOLUTION stub: answer_2 = ...
answer_2 = "all"
### END SOLUTION
check("B14.completion", answer_2)

# %% name="q3" covers=["B14"]
print_question("B14.next-experiment")

# %% name="a3" covers=["B14"]
### BEGIN SOLUTION stub: answer_3 = ...
answer_3 = "bound-chunks"
### END SOLUTION
check("B14.next-experiment", answer_3)

# %% name="q4" covers=["B14"]
print_question("B14.queue-doubles")

# %% name="a4" covers=["B14"]
### BEGIN SOLUTION stub: answer_4 = ...
answer_4 = "gaps"
### END SOLUTION
check("B14.queue-doubles", answer_4)

# %% name="q5" covers=["B14"]
print_question("B14.longer-answers")

# %% name="a5" covers=["B14"]
### BEGIN SOLUTION stub: answer_5 = ...
answer_5 = "match-lengths"
### END SOLUTION
check("B14.longer-answers", answer_5)

# %% [markdown] name="probe" covers=["B16", "B13", "B17"]
# ## The probe you answered first
#
# Now write it down, and after it the question that follows. Your text is kept before its rubric is
# shown; then you score it yourself, point by point. Say how sure you are *before* you see the result,
# with one assumption that could change your answer and one observation that would make you revise it.
# Being surprised is the useful part.

# %% name="probe_panel" covers=["B16", "B13", "B17"]
probe = QuizPanel(ids=["B16.probe", "B16.how-to-test"])
probe

# %% [markdown] name="followups" covers=["A7"]
# ## Follow-ups, from easy to hard
#
# An interviewer climbs: which number matters to whom (L1), why the two phases differ and when they do
# not (L2), why cost and waiting pull apart (L3), what the scheduler really has instead of phases (L4).

# %% name="followups_panel" covers=["A7"]
followups = QuizPanel(ids=["A7.l1", "A7.l2", "A7.l3", "A7.l4"])
followups

# %% [markdown] name="wrong" covers=["A8", "B15"]
# ## What is wrong with this answer?
#
# Each of these sounds reasonable, and is heard often. Say aloud what is wrong with it, and what you
# would measure to show it; then choose the best correction.

# %% name="wrong_panel" covers=["A8", "B15"]
wrong = QuizPanel(topic="wrong-answers")
wrong

# %% [markdown] name="mock" covers=["A9"]
# ## The mock interview
#
# Timed, in a terminal (in JupyterLab: File, New, Terminal; start it in the folder where you ran
# `make lab`):
#
# ```
# .venv/bin/llmlab interview --role inference --minutes 20
# .venv/bin/llmlab interview --role product --minutes 20
# ```
#
# It opens with a broad question, climbs or descends with how the last answer was scored, asks for one
# estimate to an order of magnitude and for the fault in one wrong answer. Your words are kept before
# you see their rubric. It ends in a one-page report: strengths, gaps with what to redo, and how well
# your confidence matched your score.
#
# What you missed in the panels above comes back sooner: run `.venv/bin/llmlab quiz` tomorrow.

# %% name="worked" tags=["solution-only"] covers=["B14"]
from llmlab.check.solution import solution

for name in ("documents", "completion", "next-experiment", "queue-doubles", "longer-answers"):
    result = check(f"B14.{name}", solution(f"B14.{name}"))
    print(result.glyph, name)
    assert result.state == "correct", name

# %% [markdown] name="wrap" covers=["B16", "B17", "A9"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > The batch keeps the processor busy, so more tokens leave the server per second; but each request
# > waits for a longer step, and now and then for someone else's prompt, before its next token.
#
# The full answer adds how to test it: send short chats mixed with long documents, fix lengths and
# arrivals, compare TTFT and ITL *by class*, then tune the batch's token limit against the users'
# targets. It names what would disprove it: gaps that do not grow with the batch, or that grow for a
# reason outside the scheduler.
#
# Three answers that lose points: tokens per second alone; fifty gaps for fifty tokens; one limit that
# is said to hold for all work on the processor.
#
# Where are you now: *not yet*, *getting there*, or *confident*? Write one assumption that your answer
# rests on, and one observation that would make you revise it.
