"""When requests are meant to be sent: arrival processes, as written in a workload file.

Open loop: requests come when they come, however slow the server is. Closed loop: a fixed number
of clients each wait for their answer, so a slow server is asked less.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from llmlab.measure.lengths import Part

Times = NDArray[np.float64]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def _read_rate(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _write_rate(value: float) -> float | str:
    return "inf" if math.isinf(value) else value  # JSON has no infinity


# Requests per second; "inf" = everything at once, as in vLLM's benchmark.
Rate = Annotated[float, Field(gt=0), BeforeValidator(_read_rate), PlainSerializer(_write_rate)]
MOST_REQUESTS = 1_000_000


class Stop(Part):
    """When to stop sending: after num_prompts requests, after duration_s, or what comes first.

    drain: let requests in flight finish; false cuts them off (cancelled, reason "run_ended").
    """

    num_prompts: Count | None = None
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    drain: bool = True

    @model_validator(mode="after")
    def _a_cut_needs_a_time(self) -> Stop:
        if not self.drain and self.duration_s is None:
            raise ValueError("drain = false: needs duration_s, the time of the cut")
        return self


class Burst(Part):
    """num_prompts of the planned requests are brought together, over_s apart in all, from at_s on.

    No request is added: the total, the mix and every length stay, only some send times move.
    """

    at_s: Seconds
    num_prompts: Count
    over_s: Seconds = 0.0

    def insert(self, times: Times) -> Times:
        """The same number of send times [n], ascending; ValueError if too few come after at_s."""
        first = int(np.searchsorted(times, self.at_s))
        if first + self.num_prompts > len(times):
            raise ValueError(
                f"arrivals.burst.num_prompts = {self.num_prompts}: only {len(times) - first} "
                f"requests are planned at or after at_s = {self.at_s:g}"
            )
        moved = times.copy()
        steps = np.linspace(0.0, self.over_s, self.num_prompts)
        moved[first : first + self.num_prompts] = self.at_s + steps
        return np.sort(moved)


class Closed(Part):
    """`concurrency` clients, each sending its next request when its last answer is over."""

    kind: Literal["closed"]
    concurrency: Count


class OpenLoop(Part):
    """Send times that no answer changes; each kind says what they are without a burst."""

    burst: Burst | None = None

    def times(self, stop: Stop, rng: np.random.Generator) -> Times:
        """Send times [n] in seconds from the start, ascending."""
        times = self._base(stop, rng)
        if stop.num_prompts is not None:
            times = times[: stop.num_prompts]
        if stop.duration_s is not None:
            times = times[times < stop.duration_s]
        if self.burst is None:
            return times
        end = self.burst.at_s + self.burst.over_s
        if stop.duration_s is not None and end >= stop.duration_s:
            raise ValueError(
                f"arrivals.burst: ends at {end:g} s: must be before stop.duration_s = "
                f"{stop.duration_s:g}"
            )
        return self.burst.insert(times)

    def _base(self, stop: Stop, rng: np.random.Generator) -> Times:
        raise NotImplementedError


class Random(OpenLoop):
    """Gaps drawn from a gamma distribution of mean 1/request_rate; the first request is at 0.

    burstiness is 1/CV^2 of the gaps: 1 is Poisson, under 1 burstier, above 1 more regular, as in
    `vllm bench serve`. As there, with num_prompts the gaps are scaled so that the offered rate,
    (n - 1) / (last - first), is exactly request_rate.
    """

    kind: Literal["poisson", "gamma"]
    request_rate: Rate
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _poisson_has_no_shape(self) -> Random:
        if self.kind == "poisson" and self.burstiness != 1.0:
            raise ValueError(
                f"burstiness = {self.burstiness:g}: belongs to kind 'gamma'; 'poisson' is 1"
            )
        return self

    def _base(self, stop: Stop, rng: np.random.Generator) -> Times:
        n = _how_many(self.request_rate, stop)
        if math.isinf(self.request_rate):
            return np.zeros(n)
        scale = 1.0 / (self.request_rate * self.burstiness)
        times = np.concatenate([[0.0], np.cumsum(rng.gamma(self.burstiness, scale, n - 1))])
        if stop.num_prompts is not None:
            return times * ((n - 1) / self.request_rate / times[-1]) if times[-1] > 0 else times
        while times[-1] < (stop.duration_s or 0.0):
            if len(times) > MOST_REQUESTS:
                raise ValueError(
                    f"burstiness = {self.burstiness:g}: more than {MOST_REQUESTS:,} requests in "
                    f"duration_s = {stop.duration_s:g}; give num_prompts"
                )
            more = np.cumsum(rng.gamma(self.burstiness, scale, len(times)))
            times = np.concatenate([times, times[-1] + more])
        return times


class RampUp(OpenLoop):
    """Random gaps at a rate that grows from request to request, over all num_prompts of them.

    With x from 0 (first gap) to 1 (last), the rate in requests per second is
    start + (end - start) x if linear, start (end / start)^x if exponential. burstiness is that of
    `Random`. As in `vllm bench serve` the gaps of a ramp are not scaled to an exact total.
    """

    kind: Literal["ramp_up"]
    ramp_up_strategy: Literal["linear", "exponential"]
    ramp_up_start_rps: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ramp_up_end_rps: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _upwards(self) -> RampUp:
        if self.ramp_up_end_rps < self.ramp_up_start_rps:
            raise ValueError(
                f"ramp_up_end_rps = {self.ramp_up_end_rps:g}: must be at least "
                f"ramp_up_start_rps = {self.ramp_up_start_rps:g}"
            )
        return self

    def rates(self, n: int) -> Times:
        """Requests per second in each of the n - 1 gaps of n requests."""
        make = np.linspace if self.ramp_up_strategy == "linear" else np.geomspace
        rates: Times = make(self.ramp_up_start_rps, self.ramp_up_end_rps, n - 1)
        return rates

    def _base(self, stop: Stop, rng: np.random.Generator) -> Times:
        assert stop.num_prompts is not None  # a workload checks it
        n = stop.num_prompts
        unit = rng.gamma(self.burstiness, 1 / self.burstiness, n - 1)  # gaps of mean 1
        return np.concatenate([[0.0], np.cumsum(unit / self.rates(n))])


class Constant(OpenLoop):
    """One request every 1/request_rate seconds, the first at 0."""

    kind: Literal["constant"]
    request_rate: Rate

    def _base(self, stop: Stop, rng: np.random.Generator) -> Times:
        index: Times = np.arange(_how_many(self.request_rate, stop), dtype=np.float64)
        return index / self.request_rate


class Recorded(OpenLoop):
    """Send times in seconds from the start, as recorded elsewhere."""

    kind: Literal["recorded"]
    timestamps_s: Annotated[list[Seconds], Field(min_length=1, max_length=MOST_REQUESTS)]

    @model_validator(mode="after")
    def _ascending(self) -> Recorded:
        for i in range(1, len(self.timestamps_s)):
            if self.timestamps_s[i] < self.timestamps_s[i - 1]:
                raise ValueError(
                    f"timestamps_s[{i}] = {self.timestamps_s[i]:g}: must not be before the one "
                    "in front of it"
                )
        return self

    def _base(self, stop: Stop, rng: np.random.Generator) -> Times:
        return np.asarray(self.timestamps_s, dtype=np.float64)


Arrivals = Annotated[Closed | Random | RampUp | Constant | Recorded, Field(discriminator="kind")]


def _how_many(rate: float, stop: Stop) -> int:
    """How many send times to draw at first: enough for the stopping rule, never absurdly many."""
    if stop.num_prompts is not None:
        return stop.num_prompts
    if stop.duration_s is None:
        raise ValueError("stop: give num_prompts or duration_s, or the run never ends")
    n = rate * stop.duration_s
    if not n <= MOST_REQUESTS:
        raise ValueError(
            f"stop.duration_s = {stop.duration_s:g}: at request_rate {rate:g} that is more than "
            f"{MOST_REQUESTS:,} requests; shorten it or give num_prompts"
        )
    return max(1, math.ceil(n))
