# %% [markdown] name="title" covers=["C8", "C9"]
# # 09 · A hosted API: measured from outside
#
# You will benchmark a server that you see only through HTTP, find out how much of what you saw was the
# server at all, shorten the two things you control, and compute the bill. About 45 minutes.
#
# **Answer this first**, on paper or aloud:
#
# > Your dashboard of a hosted API shows two peaks in the latency, one near 300 ms and one near 900 ms. A
# > colleague says: "the left peak is decode, the right one is prefill". What would you need to see before
# > you believed it?

# %% [markdown] name="predict"
# ## Predict
#
# Write down what each change does to TTFT, to TPOT and to the token charge: documents a quarter as long;
# answers a quarter as long; the server 60 ms further away; the same documents sent a second time.

# %% [markdown] name="which"
# ## The server
#
# As shipped the lab starts its own server, a process of its own on this machine, and treats it as if it
# were hosted: only HTTP goes in, only a stream comes out. At most two requests run at once there.
#
# You may name your own OpenAI-compatible endpoint instead. **Each run then sends real requests and may
# cost money**: about 40 small ones in all. Its key is read from the environment (`OPENAI_API_KEY`), never
# typed here and never shown.

# %% name="start" covers=["C8"]
import secrets
from decimal import Decimal

from llmlab.check import check, current_student, find_item
from llmlab.labs.hosted import OwnApi, measure, other_api
from llmlab.labs.pace import pick
from llmlab.labs.relay import far_away
from llmlab.measure.metrics import summarize
from llmlab.measure.pricing import Prices, bill
from llmlab.measure.workload import parse_workload
from llmlab.viz.exercise import attempt, print_prompt
from llmlab.viz.figures.runs_compared import RUNS_HEAD, Run, runs_compared, runs_rows, update_runs
from llmlab.viz.figures.ttft_parts import PARTS_HEAD, parts_figure, parts_rows, ttft_parts
from llmlab.viz.notebook import loading_bar
from llmlab.viz.panels import WorksheetPanel
from llmlab.viz.show import Shown, live_figure, number, shown_table

BASE_URL = None  # your own: "https://HOST", without /v1
MODEL = None  # and the name of its model

if "api" in globals():
    globals()["api"].stop()  # this cell was run before
with loading_bar("the server"):
    if BASE_URL is None:
        name = pick("smollm2-135m", "tiny")
        api = OwnApi(["--model", name, "--max-num-seqs", "2", "--enable-prefix-caching"])
    else:
        api = other_api(BASE_URL, MODEL)
print(f"{api.endpoint.model} at {api.endpoint.base_url}")

# %% [markdown] name="classes_text" covers=["C8"]
# ## Run: two classes, controlled concurrency
#
# A chat and a document class, two users in a closed loop: never more than two requests in flight, so a
# change you see is not a change of load. For each class you record the four things that make a figure
# readable later: **prompt length, generated length, TTFT, and how the stream came** (TPOT and its gaps).


# %% name="classes" covers=["C8"]
CHAT, DOCUMENT, ANSWER = 24, pick(384, 192), pick(32, 16)


def load(users: int, requests: int, *classes: tuple[str, int, int], seed: int | None = None):
    """A closed loop; a class is (name, prompt tokens, output tokens).

    A fresh seed each time: a prompt that the server saw before would come from its cache.
    """
    return parse_workload(
        {
            "name": "from outside",
            "seed": secrets.randbelow(2**31) if seed is None else seed,
            "classes": [
                {"name": name, "prompt_tokens": p, "output_tokens": o} for name, p, o in classes
            ],
            "arrivals": {"kind": "closed", "concurrency": users},
            "stop": {"num_prompts": requests},
        }
    )


def median(values) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


CLASS_HEAD = ["class", "n", "prompt", "generated", "TTFT p50 ms", "TPOT p50 ms", "longest gap ms"]


def class_rows(trace) -> list[list[str]]:
    rows = []
    for name, group in summarize(trace).classes.items():
        records = [r for r in trace.requests.values() if r.class_name == name]
        gaps = [b.t - a.t for r in records for a, b in zip(r.events, r.events[1:], strict=False)]
        rows.append(
            [
                name,
                str(group.counts.completed),
                number(median(r.prompt_tokens for r in records), 0),
                number(median(r.completion_tokens for r in records), 0),
                number(group["ttft"].p50),
                number(group["tpot"].p50),
                number(max(gaps) / 1e6 if gaps else None),
            ]
        )
    return rows


measure(api, load(1, 1, ("warm-up", CHAT, 4)))
mixed = measure(api, load(2, pick(12, 6), ("chat", CHAT, ANSWER), ("document", DOCUMENT, ANSWER)))
shown_table("By class, two users, measured here", CLASS_HEAD, class_rows(mixed))

# %% [markdown] name="look" covers=["C8"]
# ## Look
#
# Compare the classes line by line. Generated lengths are equal here, because this server was told to
# write exactly that many; at another endpoint compare them before anything else: a class that answers
# longer is not a slower class. A document's first token waits for more prompt work. Its later tokens are
# made like a chat's, in the same steps; yet a chat that streams while a document is read shows a long gap.
#
# **And none of this says why.** You saw TTFT at the client. In it are the way there, the server's front,
# its queue, the prompt's steps and the way back.

# %% [markdown] name="split_text" covers=["C8"]
# ## Whose time was it?
#
# This server shows its own stamps (`/trace`), which a hosted one will not. Its clock and yours need not
# agree, so never subtract a stamp of one from a stamp of the other. Two *lengths of time* may be compared:
#
# ```text
# client   send |------------------------------------------------| first token read
# server          arrival |--front--|--queue--|--prompt--| first token made
#               \_ way _/                                \_ way _/
# ```
#
# *Front* ends when the engine takes the request, which it does between two steps: who arrives during a long
# step waits for its end. *Queue* ends with the first step that has a place for it.
#
# Write how much of the client's TTFT passed outside the server. A record has `t_send` (at the server: the
# arrival) and `events[0].t`, both in nanoseconds.


# %% name="outside_exercise" covers=["C8"]
def outside_ms(client, server) -> float:
    """Milliseconds of the client's TTFT that passed outside the server."""
    ### BEGIN SOLUTION
    at_client = client.events[0].t - client.t_send
    at_server = server.events[0].t - server.t_send
    return (at_client - at_server) / 1e6
    ### END SOLUTION


# %% name="split" covers=["C8"]
def parts_of(trace) -> list:
    """TTFT in parts, one row a completed request; empty where the server shows no stamps."""
    inside = api.server_trace(trace)
    if inside is None:
        print("This server shows no stamps: its queue and its work cannot be told apart from here.")
        return []
    done = [r for r in trace.requests.values() if r.outcome == "completed"]
    return [
        ttft_parts(f"{i}: {r.class_name}", r, inside.requests[r.request_id])
        for i, r in enumerate(done, 1)
    ]


def show_parts(parts: list, caption: str) -> Shown:
    return shown_table(caption, PARTS_HEAD, parts_rows(parts), live_figure(parts_figure(parts)))


parts = parts_of(mixed)
if parts:
    inside = api.server_trace(mixed).requests
    pairs = [(r, inside[name]) for name, r in mixed.requests.items() if r.outcome == "completed"]
    outside = attempt(
        "outside_ms",
        lambda: [outside_ms(*pair) for pair in pairs],
        instead=lambda: [row.outside for row in parts],
    )
    print(f"   outside the server: {min(outside):.1f} to {max(outside):.1f} ms")
show_parts(parts, "The client's TTFT in parts, measured here")

# %% name="outside_proof" tags=["solution-only"]
from llmlab.trace import RequestRecord, TokenEvent

assert all(abs(mine - row.outside) < 1e-6 for mine, row in zip(outside, parts, strict=True))
late = RequestRecord("x", t_send=9_000_000, events=[TokenEvent(59_000_000)])
early = RequestRecord("x", t_send=1_000_000, events=[TokenEvent(21_000_000)])
assert outside_ms(late, early) == 30

# %% [markdown] name="far_text" covers=["C8"]
# ## The same server, further away
#
# A relay on this machine now holds every byte for 30 ms in each direction: a made-up distance of 60 ms for
# a round trip. The server does not know. Predict both numbers before you look: TTFT, and TPOT.

# %% name="far" covers=["C8"]
if api.is_own:
    near = measure(api, load(1, 3, ("near", CHAT, ANSWER)))
    with far_away(api.endpoint.base_url, rtt_ms=60) as url:
        far = measure(api, load(1, 3, ("60-ms-away", CHAT, ANSWER)), via=url)
    for trace in (near, far):
        for name, group in summarize(trace).classes.items():
            ttft, tpot = number(group["ttft"].p50), number(group["tpot"].p50)
            print(f"{name:14s} TTFT {ttft:>7s} ms   TPOT {tpot:>6s} ms")
    distance = parts_of(near) + parts_of(far)
else:
    print("Your endpoint has its own distance. A round trip to it is a lower bound of each TTFT.")
    distance = []
show_parts(distance, "Near, then 60 ms away (made-up distance)")

# %% [markdown] name="far_look" covers=["C8"]
# One round trip, once: the request travels there and the first token travels back. Each later token
# travels too, but so did the one before it, and the gap between them stays. (A new connection costs more
# round trips on a real network, one for TCP and more for TLS. The relay leaves those out.)

# %% [markdown] name="peaks_text" covers=["C8"]
# ## Two peaks
#
# Four users send the *same* kind of request at once, again and again: same prompt length, same answer
# length. There is nothing to be short or long about.

# %% name="peaks" covers=["C8"]
bursts = []
for _ in range(3):
    bursts.append(measure(api, load(4, 4, ("same", 4 * CHAT, ANSWER))))
seen = sorted(
    (r.events[0].t - r.t_send) / 1e6 for b in bursts for r in b.requests.values() if r.events
)
print("TTFT at the client, sorted (ms):", "  ".join(f"{value:.0f}" for value in seen))
show_parts(parts_of(bursts[-1]), "The last burst in parts, measured here")

# %% [markdown] name="peaks_look" covers=["C8"]
# Look for two groups in the sorted list, then for the part that makes them. Two requests run at once
# here; the others wait for a place, for about a whole answer. Prompt work and decode steps were the same for all
# twelve. **Two latency peaks do not prove that prefill and decode caused them**: a queue makes two peaks,
# and so do two regions, two model versions, a cache, or two lengths. The server's stamps, or
# one cause changed at a time, can tell.

# %% name="c8_panel" covers=["C8"]
from_outside = WorksheetPanel("c8")
from_outside

# %% name="c8_code" covers=["C8"]
item = find_item("C8.unexplained")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: unexplained_ms = ...
unexplained_ms = numbers["seen"] - numbers["rtt"] - numbers["queue"] - numbers["prefill"]
### END SOLUTION
check("C8.unexplained", unexplained_ms)

# %% [markdown] name="shorten_text" covers=["C8"]
# ## Shorten one thing at a time
#
# From outside you control two lengths. A shorter **document** is less prompt work. A shorter **answer** is
# fewer steps. One user, so that no queue blurs it. Which number does each move?

# %% name="shorten" covers=["C8"]
trials = {
    "as it was": (DOCUMENT, ANSWER),
    "shorter documents": (DOCUMENT // 4, ANSWER),
    "shorter answers": (DOCUMENT, ANSWER // 4),
}
traces, runs = {}, []
with loading_bar("trials", "Running") as progress:
    for done, (name, (prompt, answer)) in enumerate(trials.items()):
        progress(done, len(trials), name)
        traces[name] = measure(api, load(1, 3, ("document", prompt, answer)))
        whole = summarize(traces[name]).all
        records = traces[name].requests.values()
        runs.append(
            Run(
                round(median(r.prompt_tokens for r in records) or prompt),
                round(median(r.completion_tokens for r in records) or answer),
                whole["ttft"].p50,
                whole["tpot"].p50,
                whole["e2e"].p50,
            )
        )
figure = runs_compared()
update_runs(figure, runs)
shown_table("One length at a time, measured here", RUNS_HEAD, runs_rows(runs), live_figure(figure))

# %% [markdown] name="shorten_look" covers=["C8"]
# Compare run 2 with 1, then 3 with 1. The shorter document should move the time until the first token, the
# shorter answer the time after it. TPOT is per step, so it hardly knows how many steps there are.
#
# This compares *times*. Whether the answer is still good was not measured: hold quality by a test of your
# own. A short answer that makes its reader ask again is one more request, with the whole prompt.

# %% [markdown] name="bill_text" covers=["C9"]
# ## The bill
#
# A provider charges by tokens: input, cached input and output, each at its own rate. Cached tokens are a
# part of the prompt and are charged once, at their own rate. Write it, for rates per million tokens.


# %% name="bill_exercise" covers=["C9"]
def token_charge(prompt: int, cached: int, output: int, rates: dict) -> float:
    """The charge of one request; rates: "input", "cached_input", "output" per million tokens.

    prompt: all prompt tokens, of which `cached` came from the provider's cache.
    """
    ### BEGIN SOLUTION
    paid = (prompt - cached) * rates["input"] + cached * rates["cached_input"]
    return (paid + output * rates["output"]) / 1_000_000
    ### END SOLUTION


# %% name="bill" covers=["C9"]
# Example prices, made up for this lab; no provider's.
RATES = {"input": 1.0, "cached_input": 0.1, "output": 4.0}
prices = Prices(**{name: Decimal(str(rate)) for name, rate in RATES.items()})

repeated = load(1, 3, ("document", DOCUMENT, ANSWER))
traces["first time"] = measure(api, repeated)
traces["sent again"] = measure(api, repeated)


def charge_by_mine(trace) -> float:
    return sum(
        token_charge(r.prompt_tokens, r.cached_tokens, r.completion_tokens, RATES)
        for r in trace.requests.values()
    )


charges = attempt(
    "token_charge",
    lambda: [charge_by_mine(trace) for trace in traces.values()],
    instead=lambda: [float(bill(t.requests.values(), prices).total) for t in traces.values()],
)
BILL_HEAD = ["run", "input", "cached", "output", "TTFT p50 ms", "per 1000 requests"]
bill_rows = []
for (name, trace), charge in zip(traces.items(), charges, strict=True):
    tokens = bill(trace.requests.values(), prices)
    counts = (tokens.input_tokens, tokens.cached_tokens, tokens.output_tokens)
    ttft = summarize(trace).all["ttft"].p50
    each = 1000 * charge / len(trace.requests)
    bill_rows.append([name, *map(str, counts), number(ttft), f"${each:.3f}"])
shown_table("Token charge at made-up example prices", BILL_HEAD, bill_rows)

# %% name="bill_proof" tags=["solution-only"]
for trace, charge in zip(traces.values(), charges, strict=True):
    assert abs(charge - float(bill(trace.requests.values(), prices).total)) < 1e-12
assert token_charge(1_000_000, 250_000, 0, {"input": 2, "cached_input": 1, "output": 9}) == 1.75
assert token_charge(0, 0, 500_000, {"input": 2, "cached_input": 1, "output": 9}) == 4.5
again = bill(traces["sent again"].requests.values(), prices)
assert again.cached_tokens > 0
assert again.total < bill(traces["first time"].requests.values(), prices).total

# %% [markdown] name="bill_look" covers=["C9"]
# Nothing about a GPU stands in that table. The charge counts tokens at rates; how busy or how well used
# the provider's machines were is not in it. A fuller batch may lower the provider's cost; **no discount
# follows from that** until the price list says so. Nor does TTFT: the cached run is cheaper because the
# list has a rate for cached input, not because it was fast.
#
# And the token charge is not the whole bill: retries and requests whose answers nobody read are charged
# again, tools and storage may have prices of their own, and so do network traffic, your own servers and
# the people who watch them.

# %% name="c9_panel" covers=["C9"]
bills = WorksheetPanel("c9")
bills

# %% name="c9_code" covers=["C9"]
item = find_item("C9.bill")
numbers = item.parameters_for(current_student())
print_prompt(item)
### BEGIN SOLUTION stub: month = ...
month = numbers["requests"] * token_charge(
    numbers["input"],
    numbers["cached"],
    numbers["output"],
    {
        "input": numbers["rate_in"],
        "cached_input": numbers["rate_cached"],
        "output": numbers["rate_out"],
    },
)
### END SOLUTION
check("C9.bill", month)

# %% name="worked" tags=["solution-only"] covers=["C8", "C9"]
from llmlab.check import load_worksheet
from llmlab.check.solution import solution

for sheet in ("c8", "c9"):
    for item in load_worksheet(sheet):
        result = check(item.id, solution(item.id, current_student()))
        print(f"{result.glyph} {item.id:<24} = {item.spec.answer}")
        assert result.state == "correct", item.id

# %% [markdown] name="stop_text"
# ## Shut the server down
#
# It also ends with this notebook's kernel. To measure again, run "The server" again.

# %% name="stop"
api.stop()
print("✓ the server has ended" if api.is_own else "nothing to stop: the endpoint is not ours")

# %% [markdown] name="wrap" covers=["C8", "C9"]
# ## Wrap-up
#
# The short answer to the opening question:
#
# > Two peaks say that there are two kinds of request or two kinds of wait, not which. I would want the
# > prompt and generated lengths of both groups at a controlled concurrency, and the server's queue and
# > prefill times, or else one cause changed at a time.
#
# The full answer splits the client's TTFT: network there and back, the server's front, its queue, the
# prompt's steps. Only lengths of time cross from one clock to the other. Shortening documents cuts prompt
# work; shortening answers cuts steps; quality must be held by a test. The bill is counted in tokens, each
# kind at its own rate, and knows nothing of utilization.
#
# **Interview questions this lab prepares**
#
# - A provider's TTFT doubled at noon, TPOT did not. What are the candidates, and how do you tell them apart?
# - Why may you not subtract a server's stamp from a client's, and what may you subtract?
# - Users complain about slow answers: would you shorten the documents or the answers? What do you record?
# - The provider's GPUs run at twice the utilization. What happens to your bill, and why?
# - A cache hit lowered TTFT and the charge. Which of the two follows from the other?
#
# Next: lab 10 writes the kernels that fill and read the cache.
