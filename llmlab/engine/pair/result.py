"""What a run of a pair showed, put together from the reports of both workers. No torch.

All stamps are ns of one monotonic clock: both processes run on one machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from llmlab.trace import Trace

# Law 5 in float32: logits may differ by 1e-3 each way, so may two whose margin is below twice that.
MARGIN = 2e-3


class LayerSent(NamedTuple):
    """One message: a layer's keys and values of `tokens` positions."""

    layer: int
    t_sent: int
    t_received: int
    bytes: int
    tokens: int


class QueuePoint(NamedTuple):
    """A worker's queues from `t` on. moving: transfers that are not over."""

    t: int
    waiting: int
    running: int
    moving: int
    blocks_used: int


@dataclass(frozen=True)
class MovedRequest:
    """One request. where: "remote", "local" (a short prompt) or "retried" (asked for, then local).

    t_asked: blocks taken at the decode side; t_first_transfer: its first layer was handed to the
    link; t_last_transfer: its last layer lay in the decode pool; t_first_decode: start of the
    first step there that served it. moved_tokens: prompt positions that arrived whole.
    """

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    where: str
    moved_tokens: int
    bytes: int
    outcome: str
    reason: str | None
    t_queued: int | None
    t_asked: int | None
    t_prefill_start: int | None
    t_prefill_end: int | None
    t_first_transfer: int | None
    t_last_transfer: int | None
    t_first_decode: int | None
    t_end: int | None
    layers: list[LayerSent] = field(default_factory=list, repr=False)

    @property
    def transfer_ms(self) -> float | None:
        """Time with something of this request on the wire; None if nothing was."""
        if not self.layers:
            return None
        busy, until = 0, 0
        for _, sent, received, _, _ in sorted(self.layers, key=lambda part: part.t_sent):
            busy += max(0, received - max(sent, until))
            until = max(until, received)
        return busy / 1e6

    @property
    def handover_ms(self) -> float | None:
        """From its prefill's end to the first decode step that served it: transfer and waiting."""
        if self.t_prefill_end is None or self.t_first_decode is None or self.where != "remote":
            return None
        return (self.t_first_decode - self.t_prefill_end) / 1e6

    @property
    def visible_ms(self) -> float | None:
        """From its own prefill's end to its last layer in place; None if it never was."""
        if self.t_last_transfer is None or self.t_prefill_end is None:
            return None
        return max(0, self.t_last_transfer - self.t_prefill_end) / 1e6


@dataclass(frozen=True)
class PairResult:
    """tokens_equal: law 5 against one colocated engine; None: not compared, or nothing to compare.

    tokens_within_margin: first differences where the two best logits lie closer than float32 can
    tell apart (after one, the two texts are different texts, and comparing ends).
    bytes_moved is counted at the sender, bytes_received at the receiver, bytes_formula is
    2 * layers * kv_heads * head_dim * bytes a number * tokens moved. transfer_ms and visible_ms
    are sums over requests. colocated_trace: that engine had the cores of one worker, not of both.
    """

    model: str
    dtype: str
    kv_bytes_per_token: int
    requests: list[MovedRequest]
    tokens: list[list[int]]
    texts: list[str]
    tokens_equal: bool | None
    tokens_compared: int
    tokens_within_margin: int
    bytes_moved: int
    bytes_received: int
    bytes_formula: int
    transfer_ms: float
    visible_ms: float
    queues: dict[str, list[QueuePoint]] = field(repr=False)
    workers: dict[str, str]
    leaked_blocks: dict[str, int]
    prefill_trace: Trace = field(repr=False)
    decode_trace: Trace = field(repr=False)
    colocated_trace: Trace | None = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the traces."""
        data = {k: v for k, v in vars(self).items() if not k.endswith("_trace")}
        data["requests"] = [
            {
                **asdict(r),
                "transfer_ms": r.transfer_ms,
                "visible_ms": r.visible_ms,
                "handover_ms": r.handover_ms,
            }
            for r in self.requests
        ]
        data["queues"] = {
            side: [point._asdict() for point in points] for side, points in self.queues.items()
        }
        for row, request in zip(data["requests"], self.requests, strict=True):
            row["layers"] = [part._asdict() for part in request.layers]
        return data


Report = dict[str, Any]


def pair_result(
    about: dict[str, Any],
    prefill: Report | None,
    decode: Report | None,
    colocated: Report | None,
    ended: dict[str, str],
    partial: dict[str, list[int]],
    over: Collection[str] = (),
) -> PairResult:
    """The result from what each side reported; None stands for a worker that was killed.

    about: model, dtype, kv_bytes_per_token, prompts (their ids), texts by id once known. ended:
    how each worker ended, by the parent. partial, over: tokens seen so far and who had ended, of
    use if the decode worker died.
    """
    traces = {
        side: Trace.from_jsonl(report["trace"], side) if report else Trace()
        for side, report in (("prefill", prefill), ("decode", decode), ("colocated", colocated))
    }
    for side in ("prefill", "decode"):
        for step in traces[side].steps:
            step.worker = f"{side} 0"
    tokens = decode["tokens"] if decode else partial
    names = list(about["prompt_tokens"])
    requests = [_request(name, about, traces, decode, ended, name in over) for name in names]
    compared = compare(
        [tokens.get(n, []) for n in names],
        colocated["tokens"] if colocated else None,
        about["dtype"],
        [r.outcome == "completed" for r in requests],
    )
    per_token = about["kv_bytes_per_token"]
    return PairResult(
        model=about["model"],
        dtype=about["dtype"],
        kv_bytes_per_token=per_token,
        requests=requests,
        tokens=[tokens.get(n, []) for n in names],
        texts=[about["texts"].get(n, "") for n in names],
        tokens_equal=compared[0],
        tokens_compared=compared[1],
        tokens_within_margin=compared[2],
        bytes_moved=prefill["bytes"] if prefill else sum(r.bytes for r in requests),
        bytes_received=decode["bytes"] if decode else 0,
        bytes_formula=per_token * sum(r.moved_tokens for r in requests),
        transfer_ms=sum(r.transfer_ms or 0.0 for r in requests),
        visible_ms=sum(r.visible_ms or 0.0 for r in requests),
        queues={
            side: [QueuePoint(*point) for point in report["queues"]]
            for side, report in (("prefill", prefill), ("decode", decode))
            if report
        },
        workers=ended,
        leaked_blocks={
            side: report["leaked_blocks"]
            for side, report in (("prefill", prefill), ("decode", decode))
            if report
        },
        prefill_trace=traces["prefill"],
        decode_trace=traces["decode"],
        colocated_trace=traces["colocated"] if colocated else None,
    )


def compare(
    ours: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[tuple[int, float]]] | None,
    dtype: str,
    whole: Sequence[bool],
) -> tuple[bool | None, int, int]:
    """(law 5 holds, tokens compared, first differences within the margin).

    theirs: (token, margin of its two best logits) of the colocated engine; a request that did not
    complete is compared as far as it came.
    """
    if theirs is None:
        return None, 0, 0
    equal, compared, excused = True, 0, 0
    for mine, other, complete in zip(ours, theirs, whole, strict=True):
        for token, (expected, margin) in zip(mine, other, strict=False):
            compared += 1
            if token != expected:
                near = dtype == "float32" and margin < MARGIN
                excused += near
                equal = equal and near
                break
        else:
            equal = equal and (not complete or len(mine) == len(other))
    return equal if compared else None, compared, excused


def _request(
    name: str,
    about: dict[str, Any],
    traces: dict[str, Trace],
    decode: Report | None,
    ended: dict[str, str],
    over: bool,
) -> MovedRequest:
    """One row, from both traces and the messages that carried it."""
    there = traces["prefill"].requests.get(name)
    here = traces["decode"].requests.get(name)
    report = decode or {}
    parts = [LayerSent(*part[1:]) for part in report.get("layers", []) if part[0] == name]
    asked = report.get("asked", {}).get(name)
    retried = report.get("retried", {}).get(name)
    moved = 0 if retried else _whole_tokens(parts)
    where = "retried" if retried else "remote" if asked or there else "local"
    outcome, reason = _outcome(name, here, report, ended, retried)
    if over and not report:  # it had its last token before the worker died
        outcome, reason = "completed", None
    return MovedRequest(
        request_id=name,
        prompt_tokens=about["prompt_tokens"][name],
        cached_tokens=here.cached_tokens if here else 0,
        where=where,
        moved_tokens=moved,
        bytes=sum(part.bytes for part in parts),
        outcome=outcome,
        reason=reason,
        t_queued=here.t_queued if here else None,
        t_asked=asked[0] if asked else None,
        t_prefill_start=there.t_first_scheduled if there else None,
        t_prefill_end=there.events[0].t if there and there.events else None,
        t_first_transfer=min((part.t_sent for part in parts), default=None),
        t_last_transfer=max((part.t_received for part in parts), default=None),
        t_first_decode=here.t_first_scheduled if here else None,
        t_end=here.t_end if here else None,
        layers=parts,
    )


def _outcome(
    name: str, here: Any, report: Report, ended: dict[str, str], retried: str | None
) -> tuple[str, str | None]:
    if not report:
        return "failed", f"the decode worker was lost: {ended['decode']}"
    if name in report["refused"]:
        return "rejected", report["refused"][name]
    if here is None or here.outcome != "completed":
        return "failed", f"never ended: {report['ended']}"
    return "completed", f"computed here: {retried}" if retried else None


def _whole_tokens(parts: Sequence[LayerSent]) -> int:
    """Prompt positions of which every layer arrived: the least of the layers' sums."""
    per_layer: Counter[int] = Counter()
    for part in parts:
        per_layer[part.layer] += part.tokens
    return min(per_layer.values(), default=0)
