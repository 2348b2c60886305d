# %% [markdown] name="title" covers=["B1", "B3", "B7", "B8", "C10"]
# # 07 · Honest benchmarks: six that lie
#
# You will make six benchmarks here that lie without one false number, catch each, and see what an
# honest tool says about the same runs. About 45 minutes.
#
# **Answer this first**, on paper or aloud:
#
# > A vendor's report shows p95 TTFT down from 620 ms to 22 ms with the same model on the same GPU. Every
# > number in it was measured. Which questions do you ask before you believe it?

# %% [markdown] name="how"
# ## How this lab works
#
# Each case has two runs or two readings of one run. First comes the **headline**: the one number a slide would show.
# Stop there and say what is wrong with it. Then run the next cell: the **books**, from the same records.
#
# The runs are simulated (an 8B model on one H100, seeded) or laid out by hand, and say so. The tools are
# those you would use on a real server.

# %% name="setup"
from itertools import pairwise

import numpy as np

from llmlab.check import check, current_student, find_item
from llmlab.measure.compare import compare
from llmlab.measure.metrics import request_metrics, summarize
from llmlab.measure.workload import parse_workload
from llmlab.sim.simulate import simulate
from llmlab.trace import RequestRecord, TokenEvent, Trace
from llmlab.viz.exercise import attempt, print_prompt, print_question
from llmlab.viz.panels import WorksheetPanel
from llmlab.viz.show import shown_table

CHAT = {"name": "chat", "prompt_tokens": 256, "output_tokens": 128}
DOCUMENT = {"name": "document", "prompt_tokens": 8192, "output_tokens": 64}
chat_limits, document_limits = {"ttft_ms": 700, "gap_ms": 50}, {"ttft_ms": 2000}


def load(*classes, **more):
    """80 requests, four a second, of these classes in equal shares."""
    fixed = {"name": "mix", "seed": 7, "classes": list(classes), "stop": {"num_prompts": 80}}
    return parse_workload(fixed | {"arrivals": {"kind": "poisson", "request_rate": 4}} | more)


def serve(workload, max_num_batched_tokens=1024, max_model_len=8448):
    """A run on the simulated server."""
    knobs = {"max_num_batched_tokens": max_num_batched_tokens, "max_model_len": max_model_len}
    return simulate(workload, "llama-3.1-8b", "h100-sxm", **knobs)


def books(*traces, names=("A", "B")):
    """Where did every request go?"""
    kinds = ("submitted", "rejected", "admitted", "completed", "cancelled")
    counts = [summarize(trace).all.counts for trace in traces]
    rows = [[kind, *(str(getattr(of_one, kind)) for of_one in counts)] for kind in kinds]
    return shown_table("The books (simulated)", ["requests", *names], rows)


def verdict(a, b, limits=None):
    """What `compare` says of trial B against baseline A."""
    said = compare(a, b, limits, names=("A", "B"))
    print(said.verdict)
    for reason in said.reasons:
        print(" -", reason)


# %% [markdown] name="case1" covers=["B3", "B8"]
# ## Case 1: a much faster server
#
# Chats and long documents, the same 80 requests. B differs from A in one setting.

# %% name="case1_headline" covers=["B3"]
mix = load(CHAT | {"limits": chat_limits}, DOCUMENT | {"limits": document_limits})
a1, b1 = serve(mix), serve(mix, max_model_len=4096)
for name, trace in (("A", a1), ("B", b1)):
    figures = summarize(trace).all
    print(f"{name}: p95 TTFT {figures['ttft'].p95:4.0f} ms, p95 gap {figures['itl'].p95:4.1f} ms")

# %% [markdown] name="case1_say"
# **Say it before you go on:** what else could have made the percentiles fall? What would you ask to see?

# %% name="case1_books" covers=["B3", "B8"]
books(a1, b1)

# %% name="case1_verdict" covers=["B3", "B8"]
verdict(a1, b1, mix.limits)
attained = [summarize(t, limits=mix.limits).all.attainment for t in (a1, b1)]
print("within limits, of all judged: A {:.0%}, B {:.0%} (simulated)".format(*attained))

# %% [markdown] name="case1_explain" covers=["B3", "B8"]
# B refuses every document at the door: they are longer than its `max_model_len`. A percentile over what
# completed is taken over the easy half. **Attainment** (good over judged) keeps the rejected ones in its
# denominator, so it falls where the percentile rose.
#
# The books must balance: submitted = admitted + rejected + cancelled before send, and
# admitted = completed + failed + cancelled + in flight.

# %% name="silent_drop" covers=["B3", "B8"]
print_question("B3.silent-drop")

# %% name="silent_drop_answer" covers=["B3", "B8"]
### BEGIN SOLUTION stub: answer_drop = ...
answer_drop = "dropped"
### END SOLUTION
check("B3.silent-drop", answer_drop)

# %% name="b8_panel" covers=["B8"]
WorksheetPanel("b8")

# %% [markdown] name="case2" covers=["B7", "B8"]
# ## Case 2: answers in half the time
#
# Chats only now, with answers of 32 to 512 tokens. The server's settings are equal in both runs.

# %% name="case2_headline" covers=["B7"]
lengths = {"kind": "uniform", "low": 32, "high": 512}
varied = load(CHAT | {"output_tokens": lengths})
impatient = varied.with_(cancellations=[{"share": 1.0, "after_tokens": 200}])
a2, b2 = serve(varied), serve(impatient)
for name, trace in (("A", a2), ("B", b2)):
    print(f"{name}: mean E2E {summarize(trace).all['e2e'].mean:5.0f} ms (simulated)")

# %% [markdown] name="case2_say"
# **Say it:** same server, same requests, no kernel faster. Which requests does B's mean leave out?

# %% name="case2_books" covers=["B7", "B8"]
books(a2, b2)

# %% name="case2_verdict" covers=["B7"]
for name, trace in (("A", a2), ("B", b2)):
    print(f"{name}: mean completed answer {summarize(trace).all.output_len.mean:.0f} tokens")
verdict(a2, b2)

# %% [markdown] name="case2_explain" covers=["B7", "B8"]
# In B every client leaves after 200 tokens. What completes is what was short from the start. Cancelling is
# not a fault: it frees KV blocks and can raise *useful* throughput. But it changes the question, so the
# books must show it, and latencies are compared over matched lengths.
#
# Make it fair: compare the requests that completed in **both** runs.


# %% name="matched" covers=["B7"]
def matched_e2e(first, second):
    """Mean E2E in ms of the requests that completed in both runs: (of first, of second).

    first, second: lists of request metrics with .request_id, .outcome, .e2e, same ids in both.
    """
    ### BEGIN SOLUTION
    done = [
        {m.request_id: m.e2e for m in run if m.outcome == "completed"} for run in (first, second)
    ]
    both = sorted(done[0].keys() & done[1].keys())
    return tuple(float(np.mean([of_run[name] for name in both])) for of_run in done)
    ### END SOLUTION


# %% name="matched_try" covers=["B7"]
def library_matched(first, second):
    """The same, pair by pair."""
    pairs = [
        (x.e2e, y.e2e)
        for x, y in zip(first, second, strict=True)
        if x.outcome == y.outcome == "completed"
    ]
    return tuple(np.mean(pairs, axis=0))


runs2 = [summarize(trace).requests for trace in (a2, b2)]
fair = attempt("matched_e2e", lambda: matched_e2e(*runs2), instead=lambda: library_matched(*runs2))
print("same requests: A {:.0f} ms, B {:.0f} ms (simulated)".format(*fair))

# %% name="matched_proof" tags=["solution-only"]
assert [m.request_id for m in runs2[0]] == [m.request_id for m in runs2[1]]
assert np.allclose(matched_e2e(*runs2), library_matched(*runs2))
assert np.allclose(matched_e2e(runs2[0], runs2[0]), np.mean([m.e2e for m in runs2[0]]))

# %% [markdown] name="case2_left"
# What is left of the gain is real: B's batches are smaller, because those who left no longer share the
# steps. Hold your two lines against the headline: nearly all of it was the choice of requests.

# %% [markdown] name="case3" covers=["B7"]
# ## Case 3: more tokens per second
#
# Same arrivals, same hardware, same settings. Only the system prompt's wording changed.

# %% name="case3_headline" covers=["B7"]
short, long = (load(CHAT | {"output_tokens": n}) for n in (100, 180))
a3, b3 = serve(short), serve(long)
for name, trace in (("A", a3), ("B", b3)):
    print(f"{name}: {summarize(trace).all.rates.output_tok_s:.0f} output tokens/s (simulated)")

# %% [markdown] name="case3_say"
# **Say it:** did capacity grow? Which rate would a user notice?

# %% name="case3_verdict" covers=["B7"]
for name, trace in (("A", a3), ("B", b3)):
    figures = summarize(trace).all
    rate, wait = figures.rates.completed_req_s, figures["e2e"].mean
    print(f"{name}: {rate:.2f} requests/s, mean E2E {wait:.0f} ms (simulated)")
verdict(a3, b3)

# %% [markdown] name="case3_explain" covers=["B7", "B3"]
# The answers became longer, and nobody got one sooner. Token rate is not request rate: the mean length stands between
# them. Fix the distribution of lengths and the stopping rules, then compare.

# %% name="more_tokens" covers=["B7"]
print_question("B7.more-tokens")

# %% name="more_tokens_answer" covers=["B7"]
### BEGIN SOLUTION stub: answer_tokens = ...
answer_tokens = "request-rate"
### END SOLUTION
check("B7.more-tokens", answer_tokens)

# %% name="b7_panel" covers=["B7"]
WorksheetPanel("b7")

# %% [markdown] name="case4" covers=["B3"]
# ## Case 4: the stall nobody measured
#
# A hand-made trace: a server takes 40 ms per request, one at a time, and once stands still for 4 s. The load tester
# means to send every 50 ms, but its one connection waits for each answer before it sends the next.
#
# ```text
# meant    |  |  |  |  |  |  |  |
# sent     |  |  |              | | | |   <- late: the client waited with the server
#                |--- stall ----|
# ```


# %% name="case4_headline" covers=["B3"]
MS = 1_000_000


def stalled(client_waits, requests=200):
    """A simulated client and server; only the send stamps depend on the client."""
    trace, free = Trace(meta={"source": "hand-made", "simulated": True}), 0
    for i in range(requests):
        meant = i * 50 * MS
        start = max(meant, free)
        free = start + (4000 if i == 60 else 40) * MS
        record = RequestRecord(f"r{i}", "chat", 32, 1, t_sched=meant)
        record.t_send = start if client_waits else meant
        record.events, record.completion_tokens = [TokenEvent(free)], 1
        record.outcome, record.t_end = "completed", free
        trace.requests[record.request_id] = record
    return trace


a4, b4 = stalled(client_waits=False), stalled(client_waits=True)
print(f"p95 TTFT from the send: {summarize(b4).all['ttft'].p95:.0f} ms (simulated)")

# %% [markdown] name="case4_say"
# **Say it:** the server stood still for 4 s in a run of some 13 s. Why does the p95 not know?

# %% [markdown] name="case4_task" covers=["B3"]
# Each record has `t_sched` (when it was meant to be sent), `t_send`, and `events[0].t` (first token), all in
# ns. Write the TTFT a *user* would have had.


# %% name="from_schedule" covers=["B3"]
def ttft_as_meant(record):
    """Time to first token in ms, from when the request should have been sent."""
    ### BEGIN SOLUTION
    return (record.events[0].t - record.t_sched) / 1e6
    ### END SOLUTION


# %% name="from_schedule_try" covers=["B3"]
waits = attempt(
    "ttft_as_meant",
    lambda: [ttft_as_meant(r) + 0.0 for r in b4.requests.values()],
    instead=lambda: [request_metrics(r).ttft_from_schedule for r in b4.requests.values()],
)
print(f"p95 as meant: {np.percentile(waits, 95):.0f} ms (simulated)")

# %% name="from_schedule_proof" tags=["solution-only"]
for record in b4.requests.values():
    assert ttft_as_meant(record) == request_metrics(record).ttft_from_schedule
assert np.percentile(waits, 95) > 20 * summarize(b4).all["ttft"].p95

# %% name="case4_verdict" covers=["B3"]
late = summarize(b4).all["dispatch_delay"]
print(f"dispatch delay of the waiting client: p50 {late.p50:.0f}, p95 {late.p95:.0f} ms")
verdict(a4, b4, parse_workload(load(CHAT | {"limits": {"ttft_ms": 700}}).to_dict()).limits)

# %% [markdown] name="case4_explain" covers=["B3"]
# This is **coordinated omission**: the client stops asking just while the server is slow, so one slow sample
# stands for all the requests that should have been sent. Counted from the intended send, the waiting client
# and one that never waits see the same server. `compare` does not refuse here: it counts from the
# intention, finds no difference to A, and B misses its limit.
#
# A closed loop has no intention to compare with. It answers another question (how fast with N users?), so
# say which of the two you ran.

# %% [markdown] name="case5" covers=["B1", "C10"]
# ## Case 5: a median gap of nothing
#
# Hand-made again: a server writes a token every 25 ms. A proxy holds back five and passes them on at once.
# The client stamps each frame.


# %% name="case5_headline" covers=["B1"]
def stream(per_flush, tokens=101):
    """One simulated answer of `tokens` tokens, flushed in groups; a frame per token."""
    record = RequestRecord("r0", "chat", 32, tokens, t_sched=0, t_send=0)
    for i in range(tokens):
        flush = -(-i // per_flush) * per_flush  # the token that completes the group of token i
        record.events.append(TokenEvent((300 + 25 * flush) * MS))
    record.completion_tokens, record.outcome = tokens, "completed"
    record.t_end = record.events[-1].t
    return Trace({"source": "hand-made", "simulated": True}, {"r0": record})


direct, proxied = stream(1), stream(5)
for name, trace in (("direct", direct), ("proxied", proxied)):
    frames = [e.t / MS for e in trace.requests["r0"].events]
    print(f"{name:8s} median gap between frames {np.median(np.diff(frames)):3.0f} ms (simulated)")

# %% [markdown] name="case5_say"
# **Say it:** is the proxied stream faster? What does its reader see?

# %% name="case5_books" covers=["B1", "C10"]
rows = []
for name, trace in (("direct", direct), ("proxied", proxied)):
    figures = summarize(trace).all
    parts = (figures["event_gaps"].p50, figures["itl"].p50, figures["tpot"].p50)
    rows.append([name, *(f"{value:.0f} ms" for value in parts)])
shown_table("Gaps (simulated)", ["stream", "event gap p50", "ITL p50", "TPOT"], rows)

# %% [markdown] name="case5_explain" covers=["B1", "C10"]
# Frames with one stamp are one arrival. After a gap $d$ it brings $k$ tokens: the **event gap** is $d$, what
# the reader's eye waits; $d/k$ is a **chunk-normalized** estimate per token, what the server needs. Label
# which one you show. Neither is zero, and the ITL cannot see the proxy: only the event gap does.
#
# Write both the estimate and the stream rate for events of any size.


# %% name="normalized" covers=["B1", "C10"]
def per_token(events):
    """(chunk-normalized ms per token, tokens/s) of a stream.

    events: list of (ms, k) with rising times; k tokens arrived at that time. Two events or more.
    """
    ### BEGIN SOLUTION
    span = events[-1][0] - events[0][0]
    later = sum(k for _, k in events[1:])
    return span / later, 1e3 * later / span
    ### END SOLUTION


# %% name="normalized_try" covers=["B1", "C10"]
chunked = [(300, 1), (380, 4), (500, 6), (540, 2)]
record = RequestRecord("r0", t_send=0, events=[TokenEvent(t * MS, k) for t, k in chunked])
library = request_metrics(record)
ours = attempt(
    "per_token", lambda: per_token(chunked), instead=lambda: (library.tpot, library.stream_rate)
)
print("{:.1f} ms per token, {:.1f} tokens/s".format(*ours))
print("event gaps:", [after - before for (before, _), (after, _) in pairwise(chunked)], "ms")

# %% name="normalized_proof" tags=["solution-only"]
assert np.allclose(per_token(chunked), (library.tpot, library.stream_rate))
assert np.allclose(per_token([(0, 7), (100, 1)]), (100, 10))

# %% name="b1_panel" covers=["B1"]
WorksheetPanel("b1")

# %% name="c10_panel" covers=["C10"]
WorksheetPanel("c10")

# %% name="c10_code" covers=["C10"]
item = find_item("C10.stream-rate")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: stream_rate = ...
stream_rate = 1000 * (numbers["tokens"] - 1) / (numbers["last_token"] - numbers["first_token"])
### END SOLUTION
check("C10.stream-rate", stream_rate)

# %% [markdown] name="case6" covers=["B1", "B3"]
# ## Case 6: better on average
#
# The mix of case 1 again, everything completes, lengths and arrivals match. B has twice the token budget
# per step.

# %% name="case6_headline" covers=["B3"]
a6, b6 = serve(mix, 1024), serve(mix, 2048)
for name, trace in (("A", a6), ("B", b6)):
    figures = summarize(trace).all
    print(
        f"{name}: mean TTFT {figures['ttft'].mean:.1f} ms, mean gap {figures['itl'].mean:.1f} ms, "
        f"{figures.rates.output_tok_s:.0f} tokens/s (simulated)"
    )

# %% [markdown] name="case6_say"
# **Say it:** TTFT fell, and the mean gap is far under the chats' limit of 50 ms. Would you ship B?

# %% name="case6_verdict" covers=["B3"]
verdict(a6, b6, mix.limits)
compared = compare(a6, b6, mix.limits, names=("A", "B"))
shown_table(
    "Per class (simulated)",
    ["figure", "A", "B", "change", "limit"],
    list(map(list, compared.rows())),
)

# %% [markdown] name="case6_explain" covers=["B1", "B3"]
# These runs may be compared, so a verdict comes, and it is *no*. Larger prompt chunks make longer steps, and every
# chat that decodes beside one waits for it. The mean hides that twice: most gaps have no chunk beside them,
# and the documents' gaps and first tokens are averaged in. Keep a limit per class, at a percentile.

# %% name="fix" covers=["B3", "B7"]
print_question("B3.fix")

# %% name="fix_answer" covers=["B3", "B7"]
### BEGIN SOLUTION stub: answer_fix = ...
answer_fix = ["inputs", "outputs", "arrivals"]
### END SOLUTION
check("B3.fix", answer_fix)

# %% name="worked" tags=["solution-only"] covers=["B1", "B7", "B8", "C10"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for sheet in ("b1", "b7", "b8", "c10"):
    for item in load_worksheet(sheet):
        result = check(item.id, solution(item.id, current_student()))
        print(f"{result.glyph} {item.id:<22} = {item.spec.answer}")
        assert result.state == "correct", item.id

# %% name="lies_proof" tags=["solution-only"]
# Each headline flatters, and each is caught for the reason given.
ttft_p95 = [round(summarize(t).all["ttft"].p95) for t in (a1, b1)]
assert ttft_p95 == [620, 22]  # what the opening question says
flattered = [summarize(t).all for t in (a1, b1, a2, b2, a3, b3, a6, b6)]
assert flattered[1]["ttft"].p95 < flattered[0]["ttft"].p95 / 5
assert flattered[3]["e2e"].mean < 0.6 * flattered[2]["e2e"].mean
assert flattered[5].rates.output_tok_s > 1.5 * flattered[4].rates.output_tok_s
assert flattered[7]["ttft"].mean < flattered[6]["ttft"].mean
reasons = [compare(*pair).reasons for pair in ((a1, b1), (a2, b2), (a3, b3), (a4, b4), (a6, b6))]
assert "completed set of class document" in reasons[0][0]
assert any("completed set" in reason for reason in reasons[1])
assert "output lengths" in reasons[2][0]
assert reasons[3] == reasons[4] == []
assert compared.passes is False
headline, fairly = (flattered[2]["e2e"].mean / flattered[3]["e2e"].mean, fair[0] / fair[1])
assert fairly - 1 < (headline - 1) / 5, (headline, fairly)

# %% [markdown] name="wrap" covers=["B1", "B3", "B7", "B8", "C10"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > How many requests were submitted, and where did each go? Same lengths, same arrivals, same stopping
# > rules? From which stamp is TTFT counted? Per class?
#
# The full answer is a list you can hold against any report:
#
# | the lie | what gives it away |
# |---|---|
# | hard work dropped | completed is less than submitted; attainment |
# | early cancels | the completed answers are shorter |
# | other lengths | requests/s beside tokens/s |
# | coordinated omission | dispatch delay; TTFT from the intended send |
# | events for tokens | chunk sizes; event gap beside ITL |
# | averages over classes | limits per class, at a percentile |
#
# **Interview questions this lab prepares**
#
# - A run rejects a fifth of its requests and has the best p95. How do you compare it?
# - When do cancellations raise useful throughput, and when do they fake it?
# - Why can a load tester that waits for answers not measure a stall?
# - A histogram of SSE frame gaps has its peak at 0 ms. What is it a histogram of?
# - Tokens per second rose by 20 % and nobody is happier. Name two reasons.
#
# Next: lab 08 takes prefill and decode apart.
