"""Distributions of prompt and output lengths, in tokens, as they are written in a workload file.

Each gives lengths [n] by `draw(n, rng)`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Ints = NDArray[np.int64]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class Part(BaseModel):
    """A frozen part of a workload; an unknown field is an error that lists the known ones."""

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, data: Any) -> Any:
        if isinstance(data, dict):
            unknown = [str(key) for key in data if key not in cls.model_fields]
            if unknown:
                known = ", ".join(cls.model_fields)
                raise ValueError(f"unknown field {unknown[0]!r}; allowed are {known}")
        return data


class Fixed(Part):
    """Always `value` tokens. A bare number in the file means this."""

    kind: Literal["fixed"] = "fixed"
    value: Tokens

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        return np.full(n, self.value, dtype=np.int64)


class Uniform(Part):
    """Every whole number in low..high equally likely, both ends included."""

    kind: Literal["uniform"]
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        _require_order(self.low, self.high)
        return self

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        return rng.integers(self.low, self.high, n, endpoint=True)


class LogNormal(Part):
    """exp(Normal(log(median), sigma)), rounded and clipped to low..high: few long, many short."""

    kind: Literal["lognormal"]
    median: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
    sigma: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    low: Tokens = 1
    high: Tokens = 10_000_000

    @model_validator(mode="after")
    def _ordered(self) -> LogNormal:
        _require_order(self.low, self.high)
        return self

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        values = rng.lognormal(np.log(self.median), self.sigma, n)
        return np.clip(np.rint(values), self.low, self.high).astype(np.int64)


class Listed(Part):
    """kind "list": the values in order, again from the start; "empirical": drawn with return."""

    kind: Literal["list", "empirical"]
    values: Annotated[list[Tokens], Field(min_length=1)]

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        values = np.asarray(self.values, dtype=np.int64)
        return rng.choice(values, n) if self.kind == "empirical" else np.resize(values, n)


def _bare_number(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "fixed", "value": value}
    if isinstance(value, (dict, Part)):
        return value
    raise ValueError(
        f"{value!r}: must be a whole number of tokens, or a mapping with kind fixed, uniform, "
        "lognormal, list or empirical"
    )


Length = Annotated[
    Annotated[Fixed | Uniform | LogNormal | Listed, Field(discriminator="kind")],
    BeforeValidator(_bare_number),
]


def _require_order(low: int, high: int) -> None:
    if low > high:
        raise ValueError(f"low = {low}: must be at most high ({high})")
