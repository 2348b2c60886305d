"""What a pair of workers is asked to do, as one checked record that travels as JSON. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from llmlab.config import EngineConfig, require, require_int

MOMENTS = ("before", "during", "after")
KILLS = tuple(f"{who}:{when}" for who in ("prefill", "decode") for when in MOMENTS)
KILLS += ("prefill:stop", "link:during")
DTYPES = ("float32", "float64")
LOCAL_BELOW = 64
TIMEOUT_S = 20.0

_TEXT = (
    "A server reads the whole prompt at once and then writes its answer one token at a time. "
    "Reading is bound by arithmetic, writing by memory: a short pause of the one is a long stall "
    "of the other, so some servers give each its own device and move what was read between them. "
)
DEFAULT_PROMPTS = (
    "Name one use of a cache.",
    _TEXT * 2 + "In short:",
    _TEXT * 4 + "In short:",
    _TEXT * 6 + "In short:",
)


@dataclass(frozen=True)
class PairJob:
    """See `disaggregated.run_pair` for the fields. prompts: texts or token ids."""

    model: str
    prompts: Sequence[str | list[int]]
    max_tokens: int = 32
    config: EngineConfig = field(default_factory=EngineConfig)
    prefill_config: EngineConfig = field(default_factory=EngineConfig)
    local_below: int = LOCAL_BELOW
    overlap: bool = True
    timeout_s: float = TIMEOUT_S
    dtype: str = "float32"
    arrivals: Sequence[float] | None = None
    compare: bool = True
    kill: str | None = None
    backend: str = "gloo"

    def __post_init__(self) -> None:
        def needs(ok: bool, name: str, allowed: str) -> None:
            require(ok, "run_pair", name, getattr(self, name), allowed)

        needs(bool(self.prompts), "prompts", "at least one prompt")
        for prompt in self.prompts:
            fits = isinstance(prompt, str) or (
                isinstance(prompt, list) and all(type(token) is int for token in prompt)
            )
            needs(fits and len(prompt) > 0, "prompts", "non-empty texts or lists of token ids")
        require_int("run_pair", "max_tokens", self.max_tokens, 1)
        require_int("run_pair", "local_below", self.local_below, 0)
        needs(_number(self.timeout_s) and 0.5 <= self.timeout_s <= 600, "timeout_s", "0.5 .. 600")
        needs(self.dtype in DTYPES, "dtype", " or ".join(DTYPES))
        needs(self.kill is None or self.kill in KILLS, "kill", f"one of {', '.join(KILLS)}")
        needs(self.backend in ("gloo", "nccl"), "backend", "'gloo' or 'nccl'")
        for name in ("block_size", "max_model_len"):
            same = getattr(self.config, name) == getattr(self.prefill_config, name)
            needs(same, "prefill_config", f"of the same {name} as config")
        if self.arrivals is not None:
            ok = len(self.arrivals) == len(self.prompts)
            ok = ok and all(_number(t) and 0 <= t <= 3600 for t in self.arrivals)
            needs(ok, "arrivals", "one number of seconds (0 .. 3600) for each prompt")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PairJob:
        data: dict[str, Any] = json.loads(text)
        for name in ("config", "prefill_config"):
            data[name] = EngineConfig(**data[name])
        return cls(**data)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
