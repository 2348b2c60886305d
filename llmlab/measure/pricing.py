"""What a run would cost at a price list: tokens times rates, and nothing else.

A bill is separate from utilization: no rate here depends on how well a GPU was used, and the
token charge is not all that serving costs. Money is Decimal, so sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from llmlab.measure.per_request import output_tokens
from llmlab.trace import RequestRecord

MILLION = Decimal(1_000_000)
MOST = MILLION**2  # enough for every currency, and small enough to multiply


@dataclass(frozen=True)
class Prices:
    """Per million tokens. cached_input None: cached prompt tokens cost what others cost."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    currency: str = "USD"

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            value = getattr(self, name)
            if value is not None and not (value.is_finite() and 0 <= value <= MOST):
                raise ValueError(f"Prices.{name} = {value}: must be a number in 0..{MOST:,}")

    @classmethod
    def parse(cls, text: str) -> Prices:
        """From "input=0.15,cached_input=0.075,output=0.60[,currency=EUR]" per million tokens."""
        fields: dict[str, str] = {}
        for part in text.split(","):
            name, sign, value = (piece.strip() for piece in part.partition("="))
            if not sign or name not in ("input", "output", "cached_input", "currency"):
                raise ValueError(
                    f"prices {text!r}: write input=A,output=B[,cached_input=C][,currency=EUR], "
                    "per million tokens"
                )
            fields[name] = value
        if not {"input", "output"} <= fields.keys():
            raise ValueError(f"prices {text!r}: input and output are both needed")
        currency = fields.pop("currency", "USD")
        try:
            return cls(**{k: Decimal(v) for k, v in fields.items()}, currency=currency)
        except InvalidOperation:
            raise ValueError(f"prices {text!r}: a price is a plain number, like 0.15") from None


@dataclass(frozen=True)
class Bill:
    """unbilled: requests whose counts are unknown, so that the total is a lower bound."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    input_charge: Decimal
    cached_charge: Decimal
    output_charge: Decimal
    unbilled: int
    currency: str

    @property
    def total(self) -> Decimal:
        return self.input_charge + self.cached_charge + self.output_charge

    def to_dict(self) -> dict[str, int | str]:
        """Charges as strings: a float would not hold them exactly."""
        return {
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "input_charge": str(self.input_charge),
            "cached_charge": str(self.cached_charge),
            "output_charge": str(self.output_charge),
            "total": str(self.total),
            "currency": self.currency,
            "unbilled_requests": self.unbilled,
        }


def bill(records: Iterable[RequestRecord], prices: Prices) -> Bill:
    """The token charge. Cached prompt tokens are part of the prompt and charged once.

    Answers that failed or were cancelled are charged for the tokens they are known to have had;
    requests refused at the door are not charged. ValueError for a record that cannot be true.
    """
    uncached = cached = output = unbilled = 0
    for record in records:
        if record.outcome in ("rejected", "cancelled_before_send"):
            continue
        n = output_tokens(record)
        if record.prompt_tokens is None or n is None:
            unbilled += 1
            continue
        if not 0 <= record.cached_tokens <= record.prompt_tokens:
            raise ValueError(
                f"request {record.request_id}: {record.cached_tokens} cached of "
                f"{record.prompt_tokens} prompt tokens"
            )
        uncached += record.prompt_tokens - record.cached_tokens
        cached += record.cached_tokens
        output += n
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    return Bill(
        input_tokens=uncached,
        cached_tokens=cached,
        output_tokens=output,
        input_charge=uncached * prices.input / MILLION,
        cached_charge=cached * cached_price / MILLION,
        output_charge=output * prices.output / MILLION,
        unbilled=unbilled,
        currency=prices.currency,
    )
