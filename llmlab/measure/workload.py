"""A workload: who asks what, when, and until when. Deterministic by its seed.

A workload file fixes input lengths, output lengths, arrivals, stopping rule and cancellations, so
that two runs of it can be compared. This module sends nothing; `run.py` and the client do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from llmlab.data import data_path
from llmlab.measure.arrival import MOST_REQUESTS, Arrivals, Closed, RampUp, Recorded, Stop
from llmlab.measure.lengths import Length, Part
from llmlab.measure.limits import Limits

# Each kind of draw has a stream of its own: changing one leaves the others as they were.
ARRIVALS, ORDER, LENGTHS, CANCELLATIONS, PROMPTS = range(5)
LONGEST_S = 1e9  # 32 years; stamps in ns stay exact
COUNTED = {  # arrivals that a duration alone does not describe
    "closed": "a closed loop needs it",
    "ramp_up": "a ramp goes over that many requests",
}


@dataclass(frozen=True)
class PlannedRequest:
    """One request as it is meant to be sent.

    t_sched_ns: intended send, ns from the start; None in a closed loop (when a client is free).
    cancel_after_ns: the client leaves that long after the send; cancel_after_tokens: once it has
    that many tokens.
    """

    index: int
    class_name: str
    prompt_tokens: int
    output_tokens: int
    t_sched_ns: int | None = None
    cancel_after_ns: int | None = None
    cancel_after_tokens: int | None = None
    seed: int = 0

    def prompt_token_ids(self, vocab_size: int) -> list[int]:
        """Random token ids in 0..vocab_size-1: the same for the same seed, index and length."""
        if vocab_size < 1:
            raise ValueError(f"vocab_size = {vocab_size!r}: must be a whole number >= 1")
        rng = np.random.default_rng([self.seed, PROMPTS, self.index])
        return [int(token) for token in rng.integers(0, vocab_size, self.prompt_tokens)]


class TrafficClass(Part):
    """One kind of request. Shares are relative: 1 and 1 are equal shares."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    share: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    prompt_tokens: Length
    output_tokens: Length
    limits: Limits = Limits()

    @field_validator("limits", mode="before")
    @classmethod
    def _limits_from_mapping(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = Limits.__dataclass_fields__
        unknown = [key for key in value if key not in known]
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r}; allowed are {', '.join(known)}")
        return Limits(**value)


class Cancellation(Part):
    """A share of the requests whose client leaves, after after_s seconds or after_tokens tokens.

    class_name: of one class, or None for all. The share is exact up to rounding.
    """

    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    class_name: str | None = None
    after_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    after_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> Cancellation:
        if (self.after_s is None) == (self.after_tokens is None):
            raise ValueError("give exactly one of after_s and after_tokens")
        return self


class Workload(Part):
    """Classes, arrivals, stopping rule, cancellations, seed.

    scaled_from: the workload this is a smaller stand-in for; None if it is no stand-in.
    """

    name: Annotated[str, Field(min_length=1, max_length=80)]
    description: str = ""
    scaled_from: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    classes: Annotated[list[TrafficClass], Field(min_length=1)]
    arrivals: Arrivals
    stop: Stop = Stop()
    cancellations: list[Cancellation] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Workload:
        names = [c.name for c in self.classes]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ValueError(f"classes[{i}].name = {name!r}: each name may be used once")
        for i, cancellation in enumerate(self.cancellations):
            if cancellation.class_name not in (None, *names):
                raise ValueError(
                    f"cancellations[{i}].class_name = {cancellation.class_name!r}: must be one "
                    f"of {', '.join(names)}"
                )
        if self.stop.num_prompts is None and not isinstance(self.arrivals, Recorded):
            if isinstance(self.arrivals, (Closed, RampUp)):
                why = COUNTED[self.arrivals.kind]
                raise ValueError(f"stop.num_prompts: {why} (duration_s may end it sooner)")
            if self.stop.duration_s is None:
                raise ValueError("stop: give num_prompts or duration_s, or the run never ends")
        return self

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits of each class, for `summarize`."""
        return {c.name: c.limits for c in self.classes}

    @property
    def closed_loop(self) -> bool:
        return isinstance(self.arrivals, Closed)

    def with_(self, **changes: Any) -> Workload:
        """A copy with some fields changed, checked again."""
        return Workload.model_validate(self.to_dict() | changes)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, what the file would say."""
        return self.model_dump()

    def requests(self) -> list[PlannedRequest]:
        """The requests in the order they are to be sent. Same workload and seed, same list."""
        times = self._times()
        n = len(times)
        if n > MOST_REQUESTS:
            raise ValueError(f"stop: {n:,} requests; at most {MOST_REQUESTS:,}")
        order = self._order(n)
        prompts, outputs = self._lengths(order)
        planned = [
            PlannedRequest(
                index=i,
                class_name=self.classes[order[i]].name,
                prompt_tokens=int(prompts[i]),
                output_tokens=int(outputs[i]),
                t_sched_ns=times[i],
                seed=self.seed,
            )
            for i in range(n)
        ]
        return self._with_cancellations(planned)

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *stream])

    def _times(self) -> list[int | None]:
        if isinstance(self.arrivals, Closed):
            return [None] * (self.stop.num_prompts or 0)
        seconds = self.arrivals.times(self.stop, self._rng(ARRIVALS))
        last = float(seconds.max(initial=0.0))
        if last > LONGEST_S:
            raise ValueError(
                f"arrivals: the last is due at {last:g} s: must end within {LONGEST_S:g} s"
            )
        return [round(float(t) * 1e9) for t in seconds]

    def _order(self, n: int) -> list[int]:
        """Class of each request: exact shares (largest remainder), then shuffled."""
        counts = apportion(n, [c.share for c in self.classes])
        order = np.repeat(np.arange(len(counts)), counts)
        self._rng(ORDER).shuffle(order)
        return [int(i) for i in order]

    def _lengths(self, order: list[int]) -> tuple[list[int], list[int]]:
        prompts, outputs = [0] * len(order), [0] * len(order)
        for c, traffic in enumerate(self.classes):
            places = [i for i, own in enumerate(order) if own == c]
            drawn_in = traffic.prompt_tokens.draw(len(places), self._rng(LENGTHS, c, 0))
            drawn_out = traffic.output_tokens.draw(len(places), self._rng(LENGTHS, c, 1))
            for place, length_in, length_out in zip(places, drawn_in, drawn_out, strict=True):
                prompts[place], outputs[place] = int(length_in), int(length_out)
        return prompts, outputs

    def _with_cancellations(self, planned: list[PlannedRequest]) -> list[PlannedRequest]:
        for i, rule in enumerate(self.cancellations):
            free = [
                p.index
                for p in planned
                if rule.class_name in (None, p.class_name)
                and p.cancel_after_ns is None
                and p.cancel_after_tokens is None
            ]
            of_class = sum(rule.class_name in (None, p.class_name) for p in planned)
            n = min(len(free), round(rule.share * of_class))
            after_ns = None if rule.after_s is None else round(rule.after_s * 1e9)
            for index in self._rng(CANCELLATIONS, i).choice(free, n, replace=False) if n else ():
                planned[index] = replace(
                    planned[index], cancel_after_ns=after_ns, cancel_after_tokens=rule.after_tokens
                )
        return planned


def apportion(n: int, shares: list[float]) -> list[int]:
    """Split n by shares in whole numbers: exact where possible, else by largest remainder."""
    exact = [n * share / sum(shares) for share in shares]
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return counts


def load_workload(source: str | Path) -> Workload:
    """Read a workload: a path, or the name of one that comes with the package.

    Raises ValueError that names file, field and what is allowed.
    """
    path = Path(source)
    if not path.suffix and not path.is_file():
        path = data_path("workloads", f"{source}.yaml")
    if not path.is_file():
        raise ValueError(
            f"{source}: no such workload; give a .yaml file or one of {', '.join(names())}"
        )
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a YAML file: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a mapping with name, classes, arrivals and stop")
    return parse_workload(data, str(path))


def parse_workload(data: dict[str, Any], where: str = "workload") -> Workload:
    """Check plain data; ValueError names where, the field and what is allowed."""
    try:
        return Workload.model_validate(data)
    except ValidationError as error:
        lines = [f"{where}: {_field(e['loc'])}{_say(e)}" for e in error.errors()]
        raise ValueError("\n".join(lines)) from None


def names() -> list[str]:
    """Names of the workloads that come with the package."""
    return sorted(path.stem for path in data_path("workloads").glob("*.yaml"))


def _field(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return f"{text}: " if text else ""


def _say(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    given = error["input"]
    plain = not isinstance(given, (dict, list)) and error["type"] not in ("missing", "value_error")
    return f"{message}, not {given!r}" if plain else message
