"""Two runs of the same workload side by side: one table, a verdict, and what it does not show.

No verdict is given where the runs did not answer the same question (see comparable.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from llmlab.measure.checks import Check, check_limits
from llmlab.measure.comparable import settings_changed, why_not_comparable
from llmlab.measure.limits import Limits
from llmlab.measure.metrics import summarize
from llmlab.measure.summary import Group, Summary
from llmlab.measure.tables import UNDEFINED, show
from llmlab.trace import Trace

STANDS_STILL = 0.5  # percent: less than that is no gain


@dataclass(frozen=True)
class Comparison:
    """reasons: why no verdict can be given, [] if one can.

    gain, goodput_gain: of output tokens/s and of goodput, in percent. In an open loop the arrivals
    set the output rate, so there only goodput can tell a better setting.
    verdict: one sentence. decision: "For the stated mix and targets, test ... next because ...".
    not_shown: what these runs cannot tell. changes: settings that differ, (name, old, new).
    """

    names: tuple[str, str]
    baseline: Summary
    trial: Summary
    reasons: list[str]
    checks: list[Check] = field(default_factory=list)
    gain: float | None = None
    goodput_gain: float | None = None
    verdict: str = ""
    decision: str = ""
    not_shown: list[str] = field(default_factory=list)
    changes: list[tuple[str, Any, Any]] = field(default_factory=list)

    @property
    def comparable(self) -> bool:
        return not self.reasons

    @property
    def passes(self) -> bool | None:
        """Whether the trial kept every limit; None without a verdict or without limits."""
        return all(c.trial_holds for c in self.checks) if self.checks else None

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """(figure, baseline, trial, change, limit): the one table."""
        table = []
        for name, old in self.baseline.classes.items():
            new = self.trial.classes.get(name)
            if new is not None:
                table += _class_rows(name, old, new, self.checks)
        rates = (
            ("Output rate, tok/s", "output_tok_s"),
            ("Requests completed, req/s", "completed_req_s"),
            ("Goodput, req/s", "goodput_req_s"),
        )
        for label, key in rates:
            old_rate = getattr(self.baseline.all.rates, key)
            new_rate = getattr(self.trial.all.rates, key)
            table.append(_row(label, old_rate, new_rate, None))
        memory = (self.baseline.max_resident_kv_tokens, self.trial.max_resident_kv_tokens)
        table.append(_row("Most KV resident, tokens", *memory, None))
        return [row for row in table if (row[1], row[2]) != (UNDEFINED, UNDEFINED)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": "llmlab-comparison/1",
            "names": list(self.names),
            "comparable": self.comparable,
            "reasons": self.reasons,
            "checks": [
                asdict(c) | {"baseline_holds": c.baseline_holds, "trial_holds": c.trial_holds}
                for c in self.checks
            ],
            "passes": self.passes,
            "gain_percent": self.gain,
            "goodput_gain_percent": self.goodput_gain,
            "verdict": self.verdict,
            "decision": self.decision,
            "not_shown": self.not_shown,
            "changes": [list(change) for change in self.changes],
            "baseline": self.baseline.to_dict(),
            "trial": self.trial.to_dict(),
        }

    def to_markdown(self) -> str:
        heads = ("Figure", *self.names, "Change", "Limit")
        lines = ["| " + " | ".join(heads) + " |", "|---|---:|---:|---:|---|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        lines += ["", f"Changed: {_changed(self.changes)}."]
        if not self.comparable:
            lines += ["", f"**{self.verdict}**", *[f"- {reason}" for reason in self.reasons]]
        else:
            lines += ["", f"**{self.verdict}**", "", self.decision, "", "Not shown:"]
            lines += [f"- {text}" for text in self.not_shown]
        return "\n".join(lines) + "\n"


def compare(
    a: Trace,
    b: Trace,
    limits: Mapping[str, Limits] | Limits | None = None,
    *,
    names: tuple[str, str] = ("baseline", "trial"),
    length_tolerance: float = 0.02,
) -> Comparison:
    """Compare trial b with baseline a.

    limits: by class; each is held against the class's p95 (gaps: their own percentile), latencies
    counted from the intended send. Raises Contradiction if a trace cannot be true.
    """
    old, new = (summarize(trace, limits=limits, percentiles=(50, 95, 99)) for trace in (a, b))
    reasons = why_not_comparable(a, b, length_tolerance)
    changes = settings_changed(a, b)
    if reasons:
        verdict = "No verdict: the runs did not answer the same question."
        return Comparison(names, old, new, reasons, verdict=verdict, changes=changes)
    checks = check_limits(old, new)
    gain = _gain(old.all.rates.output_tok_s, new.all.rates.output_tok_s)
    goodput_gain = _gain(old.all.rates.goodput_req_s, new.all.rates.goodput_req_s)
    moved = _moved(gain, goodput_gain)
    return Comparison(
        names,
        old,
        new,
        [],
        checks,
        gain,
        goodput_gain,
        _verdict(names[1], checks, moved[1]),
        _decision(names, checks, moved, changes),
        _not_shown(a, new),
        changes,
    )


def _gain(old: float | None, new: float | None) -> float | None:
    return 100 * (new / old - 1) if old and new is not None else None


def _moved(gain: float | None, goodput_gain: float | None) -> tuple[float | None, str]:
    """(percent, words) of the gain: output tokens, or goodput where they stood still."""
    if goodput_gain is not None and (gain is None or abs(gain) < STANDS_STILL):
        return goodput_gain, f"{_percent(goodput_gain)} goodput at the same output rate"
    return gain, f"{_percent(gain)} output tokens/s"


def _percent(change: float | None) -> str:
    """+12.2 %, never -0.0 %."""
    return UNDEFINED if change is None else f"{round(change, 1) + 0.0:+.1f} %"


def _class_rows(
    name: str, old: Group, new: Group, checks: list[Check]
) -> list[tuple[str, str, str, str, str]]:
    rows = [
        _row(f"{name}: {c.figure}, ms", c.baseline, c.trial, c.limit)
        for c in checks
        if c.class_name == name
    ]
    judged = {c.figure for c in checks if c.class_name == name}
    for label, figure in (("TTFT", "ttft"), ("gap", "itl"), ("E2E", "e2e")):
        if f"{label} p95" not in judged:
            old_p95, new_p95 = (group.as_meant(figure).p95 for group in (old, new))
            rows.append(_row(f"{name}: {label} p95, ms", old_p95, new_p95, None))
    return rows


def _row(
    label: str, old: float | None, new: float | None, limit: float | None
) -> tuple[str, str, str, str, str]:
    held = ""
    if limit is not None:
        held = f"{show(limit)} " + ("holds" if new is None or new <= limit else "MISSED")
    return label, show(old), show(new), _percent(_gain(old, new)), held


def _verdict(trial: str, checks: list[Check], moved: str) -> str:
    if not checks:
        return f"No limits were stated, so no verdict: {trial} has {moved}."
    missed = [c for c in checks if not c.trial_holds]
    if not missed:
        return f"{trial} meets every limit with {moved}."
    said = ", ".join(
        f"{c.class_name} {c.figure} {show(c.trial)} > {show(c.limit)} ms" for c in missed
    )
    return f"{trial} fails with {moved}: {said}."


def _decision(
    names: tuple[str, str],
    checks: list[Check],
    moved: tuple[float | None, str],
    changes: list[tuple[str, Any, Any]],
) -> str:
    """The sentence a team can act on, from what was missed."""
    missed = [c for c in checks if not c.trial_holds]
    gaps = [c for c in missed if c.figure.startswith(("gap", "TPOT"))]
    setting = _changed(changes)
    if gaps:
        what = "the same workload with smaller prompt chunks"
        why = f"prompt work delays the decode steps of {gaps[0].class_name}"
    elif missed:
        what = "the same workload with more prompt tokens a step, or fewer requests a second"
        why = f"{missed[0].class_name} waits too long for its {missed[0].figure.split()[0]}"
    elif not checks:
        what, why = "the same workload with limits stated", "a rate alone says nothing to a user"
    elif moved[0] is not None and moved[0] >= STANDS_STILL:
        what = f"{names[1]} ({setting}) under a burst of the same mix"
        why = f"it meets every limit with {moved[1]}"
    elif not changes:
        what, why = "a trial in which one setting differs", "these runs record no change"
    else:
        what = f"another setting than {names[1]} ({setting})"
        why = "it meets every limit and gains nothing"
    return f"For the stated mix and targets, test {what} next because {why}."


def _not_shown(a: Trace, trial: Summary) -> list[str]:
    thin = [group.name for group in trial.classes.values() if group["ttft"].thin_p99]
    lines = [f"p99: fewer than 100 requests ({', '.join(thin)})"] if thin else []
    lines += [
        "run-to-run spread: one run of each setting",
        "a cold model: first requests after a start",
        "overload: arrivals beyond this rate, or after losing a replica",
        "other mixes and other lengths",
    ]
    return lines + (["a real machine: both runs are simulated"] if a.simulated else [])


def _changed(changes: list[tuple[str, Any, Any]]) -> str:
    if not changes:
        return "no setting that the traces record"
    return ", ".join(f"{key} {old} → {new}" for key, old, new in changes)
