"""One request over the wire, from send to the close of its stream, written into its record."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx

from llmlab.measure.frames import AnswerReader, error_message
from llmlab.measure.sse import SSEDecoder
from llmlab.measure.wire import WIRE_ERRORS, reads_of
from llmlab.trace import RequestRecord

if TYPE_CHECKING:
    from llmlab.measure.client import Call, LoadClient

AT_THE_DOOR = (429, 503)  # the server is there and will not take the request now
MAX_ERROR_BODY = 64 * 1024


class _Left(Exception):
    """The client left on purpose: the reason."""


async def exchange(
    client: LoadClient, http: httpx.AsyncClient, call: Call, record: RequestRecord
) -> None:
    """Send one call and fill in its record: stamps, counts, outcome. Raises only when cancelled."""
    answer = AnswerReader()
    record.t_send = client.clock()
    if record.t_sched is None:  # a client of a closed loop means to send when it does
        record.t_sched = record.t_send
    seconds, why = _patience(client, call)
    try:
        async with asyncio.timeout(seconds):
            await _send(client, http, call, record, answer)
        record.outcome, record.reason = _verdict(answer, client.endpoint.stream)
    except TimeoutError:
        record.outcome, record.reason = "cancelled", why
    except _Left as left:
        record.outcome, record.reason = "cancelled", str(left)
    except _Refused as refused:
        record.outcome, record.reason = refused.outcome, str(refused)
    except WIRE_ERRORS as error:
        record.outcome = "failed"
        record.reason = f"connection: {error or type(error).__name__}"
    except (ValueError, RecursionError) as error:
        record.outcome, record.reason = "failed", f"not understood: {error}"
    except asyncio.CancelledError:
        if record.reason == "run_ended":
            record.outcome = "cancelled"
        else:
            record.reason = "interrupted"  # still in flight when the run was stopped
        _settle(client, record, answer)
        raise
    _settle(client, record, answer)


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.outcome: Any = "rejected" if status in AT_THE_DOOR else "failed"


def _patience(client: LoadClient, call: Call) -> tuple[float, str]:
    """Seconds from the send until the client leaves, and why: as scripted, or its time-out."""
    waits = [(client.endpoint.timeout_s, "client_timeout")]
    if call.cancel_after_ns is not None:
        waits.append((call.cancel_after_ns / 1e9, "scripted"))
    return min(waits)


async def _send(
    client: LoadClient,
    http: httpx.AsyncClient,
    call: Call,
    record: RequestRecord,
    answer: AnswerReader,
) -> None:
    endpoint = client.endpoint
    headers = {
        **endpoint.request_headers(),
        "X-Request-Id": call.request_id,
        "X-Request-Class": call.class_name,
    }
    body = endpoint.request_body(call)
    async with http.stream("POST", endpoint.url, json=body, headers=headers) as response:
        record.reads = reads_of(response)
        if response.is_redirect:
            # Following would send the request, perhaps the key, to a server nobody named.
            where = response.headers.get("location", "?").split("?")[0]
            raise _Refused(response.status_code, f"redirected to {where}; give that as base URL")
        if response.status_code != 200:
            raise _Refused(response.status_code, await _error_text(response))
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("the answer is compressed, so its frames have no times of their own")
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            await _read_stream(response, record, answer, call.cancel_after_tokens)
        else:
            await response.aread()
            _read_whole(response.text, answer)


async def _read_stream(
    response: httpx.Response,
    record: RequestRecord,
    answer: AnswerReader,
    leave_after: int | None,
) -> None:
    decoder = SSEDecoder()
    async for chunk in response.aiter_raw():
        stamp = record.reads[-1][0]  # of the read that completed this chunk
        for event in decoder.feed(chunk):
            answer.take(event.data, stamp)
        if leave_after is not None and _tokens_so_far(answer) >= leave_after:
            raise _Left("scripted")


def _read_whole(body: str, answer: AnswerReader) -> None:
    """An answer in one piece: it has counts and a finish reason, but no token events."""
    answer.take(body, 0)
    answer.pieces.clear()
    answer.kinds.clear()


def _tokens_so_far(answer: AnswerReader) -> int:
    """At least as many tokens as this have come; a frame of unknown count is taken for one."""
    counts = (piece.growth or piece.ids or piece.logprobs or 1 for piece in answer.pieces)
    return sum(counts)


async def _error_text(response: httpx.Response) -> str:
    raw = b""
    async for part in response.aiter_raw():
        raw += part
        if len(raw) > MAX_ERROR_BODY:
            break
    try:
        return error_message(json.loads(raw))
    except (ValueError, RecursionError):
        return raw[:200].decode("utf-8", "replace").strip() or "no message"


def _verdict(answer: AnswerReader, streamed: bool) -> tuple[Any, str | None]:
    """HTTP 200 is not the end: an error frame or a stream that just stops is a failure."""
    if answer.error is not None:
        return "failed", answer.error
    if answer.finish_reason is None and not answer.done:
        return "failed", "the answer ended without a finish reason" + (
            " or [DONE]" if streamed else ""
        )
    return "completed", None


def _settle(client: LoadClient, record: RequestRecord, answer: AnswerReader) -> None:
    """Everything that is known when the stream is over, however it ended."""
    if record.outcome != "in_flight":
        record.t_end = client.clock()
    record.frames = dict(answer.kinds)
    record.events = answer.events()
    record.finish_reason = answer.finish_reason
    if record.reason is not None:
        record.reason = client.endpoint.hide(record.reason)
    text = "".join(answer.text)
    client.keep(record.request_id, text)
    client.k_sources[answer.k_source()] += 1
    record.prompt_tokens = answer.prompt_tokens
    record.cached_tokens = answer.cached_tokens
    _count(client, record, answer, text)


def _count(client: LoadClient, record: RequestRecord, answer: AnswerReader, text: str) -> None:
    """N and where it comes from: the server's usage, else the events, else a named tokenizer."""
    known = [event.k for event in record.events if event.k is not None]
    if answer.completion_tokens is not None:
        record.completion_tokens, record.count_source = answer.completion_tokens, "usage"
    elif known and len(known) == len(record.events):
        record.completion_tokens, record.count_source = sum(known), answer.k_source()
    elif client.count_tokens is not None:
        name, count = client.count_tokens
        record.completion_tokens, record.count_source = count(text), f"local:{name}"
