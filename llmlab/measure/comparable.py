"""May two runs be compared at all? Every way in which they are not the same question.

A run that got shorter answers, an easier arrival pattern, or that dropped the hard requests looks
faster without being it. Each reason is a sentence that says what differs and by how much.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmlab.measure import noted
from llmlab.measure.per_request import output_tokens
from llmlab.trace import RequestRecord, Trace

ARRIVAL_TOLERANCE_S = 1e-3
SETTINGS = (  # in a trace's meta, beside the engine's config
    "model",
    "hardware",
    "tensor_parallel",
    "precision",
    "policy",
    "scheduler",
    "async_scheduling",
)


def why_not_comparable(a: Trace, b: Trace, length_tolerance: float = 0.02) -> list[str]:
    """Reasons not to compare run a (baseline) with run b (trial); [] if there is none.

    length_tolerance: how far sorted lengths may lie apart on average, as a share of their mean
    (answers that end by themselves vary a little from run to run).
    """
    reasons = []
    if a.simulated != b.simulated:
        reasons.append("clock: one run is simulated, the other was measured")
    by_class_a, by_class_b = _by_class(a), _by_class(b)
    if set(by_class_a) != set(by_class_b):
        return [
            *reasons,
            f"classes: {_words(by_class_a)} in the baseline, {_words(by_class_b)} in the trial",
        ]
    for name, ours in by_class_a.items():
        theirs = by_class_b[name]
        reasons += _lengths_differ(name, ours, theirs, length_tolerance)
        reasons += _completed_differ(name, ours, theirs)
    return reasons + _arrivals_differ(a, b)


def settings_changed(a: Trace, b: Trace) -> list[tuple[str, Any, Any]]:
    """(name, a's, b's) of settings that differ: model, machine, scheduler and config."""
    ours, theirs = (
        {key: trace.meta.get(key) for key in SETTINGS} | noted.config(trace) for trace in (a, b)
    )
    pairs = ((key, ours.get(key), theirs.get(key)) for key in {**ours, **theirs})
    return [(key, old, new) for key, old, new in pairs if old != new]


def _by_class(trace: Trace) -> dict[str, list[RequestRecord]]:
    classes: dict[str, list[RequestRecord]] = {}
    for record in trace.requests.values():
        classes.setdefault(record.class_name, []).append(record)
    return classes


def _words(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"


def _lengths_differ(
    name: str, ours: list[RequestRecord], theirs: list[RequestRecord], tolerance: float
) -> list[str]:
    reasons = []
    if len(ours) != len(theirs):
        reasons.append(f"requests of class {name}: {len(ours)} against {len(theirs)}")
    pairs = {
        "prompt": ([r.prompt_tokens for r in ours], [r.prompt_tokens for r in theirs]),
        "output": (_completed_lengths(ours), _completed_lengths(theirs)),
    }
    for what, (left, right) in pairs.items():
        if None in left or None in right:
            reasons.append(f"{what} lengths of class {name}: not recorded for every request")
        elif left and right and (apart := _apart(left, right)) > tolerance:
            reasons.append(
                f"{what} lengths of class {name}: mean {np.mean(_known(left)):.4g} against "
                f"{np.mean(_known(right)):.4g} tokens, {100 * apart:.3g} % apart"
            )
    return reasons


def _completed_lengths(records: list[RequestRecord]) -> list[int | None]:
    return [output_tokens(r) for r in records if r.outcome == "completed"]


def _known(lengths: list[int | None]) -> list[int]:
    return [length for length in lengths if length is not None]


def _apart(left: list[int | None], right: list[int | None]) -> float:
    """Mean distance of equal quantiles (Wasserstein-1) over the mean length."""
    grid = (np.arange(200) + 0.5) / 2
    quantiles = [np.percentile(_known(side), grid, method="inverted_cdf") for side in (left, right)]
    return float(np.abs(quantiles[0] - quantiles[1]).mean() / max(1.0, quantiles[0].mean()))


def _completed_differ(
    name: str, ours: list[RequestRecord], theirs: list[RequestRecord]
) -> list[str]:
    """Requests are matched by the order in which they were submitted."""
    left = [r.outcome == "completed" for r in ours]
    right = [r.outcome == "completed" for r in theirs]
    if left == right:
        return []
    text = f"completed set of class {name}: {sum(left)} of {len(left)} against {sum(right)} of "
    text += f"{len(right)}"
    if sum(left) == sum(right) and len(left) == len(right):
        text += ", but not the same ones"
    return [text]


def _arrivals_differ(a: Trace, b: Trace) -> list[str]:
    ours, theirs = noted.arrivals(a), noted.arrivals(b)
    if "closed" in (ours.get("kind"), theirs.get("kind")):
        # In a closed loop the server sets the send times; what is fixed is the number of clients.
        return [] if ours == theirs else [f"arrivals: {_say(ours)} against {_say(theirs)}"]
    left, right = _schedule(a), _schedule(b)
    if None in left or None in right:
        return ["arrivals: not every request has a send time"]
    if len(left) != len(right):
        return []  # said already, by class
    apart = np.abs(np.array(left, dtype=float) - np.array(right, dtype=float)) / 1e9
    if apart.size and apart.max() > ARRIVAL_TOLERANCE_S:
        return [f"arrivals: intended send times differ by up to {apart.max():.3g} s"]
    return []


def _say(plan: dict[str, Any]) -> str:
    known = {key: value for key, value in plan.items() if value is not None}
    return " ".join(str(part) for pair in known.items() for part in pair) or "not recorded"


def _schedule(trace: Trace) -> list[int | None]:
    """Intended send of each request (the real one where none was intended), from the first."""
    stamps = [r.t_send if r.t_sched is None else r.t_sched for r in trace.requests.values()]
    known = [t for t in stamps if t is not None]
    if len(known) < len(stamps):
        return [None]
    return [*sorted(t - min(known) for t in known)]
