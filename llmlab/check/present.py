"""How a question of the bank is put to a learner, in plain data: no terminal, no widgets.

What is asked (`Asked`) and what is shown afterwards (`Revealed`) are apart, so that a screen
that has only the first cannot give anything away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmlab.check import library, worksheet
from llmlab.check.choose import (
    LETTERS,
    UnreadableAnswer,
    as_item,
    normal,
    options_for,
    prompt_for,
    rights_for,
    steps_for,
)
from llmlab.check.question import (
    FlawQuestion,
    MatchQuestion,
    NumericQuestion,
    OrderQuestion,
    ProseQuestion,
    Question,
    TraceQuestion,
)
from llmlab.check.student import Student
from llmlab.check.units import with_unit
from llmlab.trace import StepRecord, Trace

MS = 1e6


@dataclass(frozen=True)
class Table:
    """A caption, column heads and rows of text; the columns in `words` are not numbers."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[str, ...] = ("decodes", "prompt tokens", "preempted")


@dataclass(frozen=True)
class Asked:
    """A question as it is asked. choices: (letter, text); lefts: what is matched with them."""

    id: str
    prompt: str
    how: str
    report: str = ""
    table: Table | None = None
    lefts: tuple[str, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Revealed:
    """What is shown once the answer has been asked for. answer: lines, the right ones first."""

    answer: tuple[str, ...]
    short: str
    full: str


def ask(question: Question, student: Student | None = None) -> Asked:
    """The question as this student sees it; nothing in it depends on what is right."""
    prompt = prompt_for(question, student)
    if isinstance(question, NumericQuestion):
        unit = f", in {question.unit} or with a unit of its own" if question.unit else ""
        return Asked(question.id, prompt, f"A number{unit}")
    if isinstance(question, ProseQuestion):
        return Asked(question.id, prompt, "In your own words; committed before the rubric is shown")
    if isinstance(question, OrderQuestion):
        steps = _lettered([s.text for s in steps_for(question, student)])
        how = f"All letters in order, like {_example(len(steps))}"
        return Asked(question.id, prompt, how, choices=steps)
    if isinstance(question, MatchQuestion):
        rights = _lettered([text for _, text in rights_for(question, student)])
        how = f"One letter for each of 1 to {len(rights)}, like {_example(len(rights))}"
        lefts = tuple(p.left for p in question.pairs)
        return Asked(question.id, prompt, how, lefts=lefts, choices=rights)
    shown = _lettered([o.text for o in options_for(question, student)])
    last = shown[-1][0]
    how = f"All that apply, a to {last}, like a c" if question.many else f"One letter, a to {last}"
    return Asked(
        question.id,
        prompt,
        how,
        report=question.report if isinstance(question, FlawQuestion) else "",
        table=step_table(trace_of(question)) if isinstance(question, TraceQuestion) else None,
        choices=shown,
    )


def _example(n: int) -> str:
    """Letters for an example, in an order that means nothing."""
    return " ".join(LETTERS[:n][::-1])


def _lettered(texts: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(LETTERS, texts, strict=False))


def reveal(question: Question, student: Student | None = None) -> Revealed:
    """The answer, short and full."""
    return Revealed(tuple(_answer(question, student)), question.short, question.full)


def _answer(question: Question, student: Student | None) -> list[str]:
    if isinstance(question, NumericQuestion):
        item = as_item(question)
        value = worksheet.right_value(question, item.parameters_for(student))
        near = "about " if question.tolerance.order_of_magnitude else ""
        return [near + with_unit(value, question.unit)]
    if isinstance(question, ProseQuestion):
        return []
    if isinstance(question, OrderQuestion):
        letters = {s.id: a for a, s in zip(LETTERS, steps_for(question, student), strict=False)}
        return [f"{letters[s.id]}  {s.text}" for s in question.steps]
    if isinstance(question, MatchQuestion):
        names = [name for name, _ in rights_for(question, student)]
        return [
            f"{n} {LETTERS[names.index(p.id)]}  {p.left}: {p.right}"
            for n, p in enumerate(question.pairs, 1)
        ]
    lettered = list(zip(LETTERS, options_for(question, student), strict=False))
    ordered = sorted(lettered, key=lambda pair: not pair[1].correct)
    return [f"{'✓' if o.correct else '✗'} {letter})  {o.text} {o.why}" for letter, o in ordered]


def said(question: Question, answer: Any, student: Student | None = None) -> str:
    """An answer in words, for a report: the texts that were chosen, not their letters."""
    if answer is None:
        return ""
    try:
        chosen = normal(question, answer, student)
    except UnreadableAnswer:
        return str(answer)
    if isinstance(question, OrderQuestion):
        texts = {s.id: s.text for s in question.steps}
        return " → ".join(texts[name] for name in chosen)
    if isinstance(question, MatchQuestion):
        rights = {p.id: p.right for p in question.pairs}
        matched = [p for p in question.pairs if p.id in chosen]  # a form may leave some open
        return "; ".join(f"{p.left}: {rights[chosen[p.id]]}" for p in matched)
    if isinstance(question, (NumericQuestion, ProseQuestion)):
        return str(answer)
    return "; ".join(o.text for o in question.options if o.id in chosen)


# -- a trace as a table ----------------------------------------------------------------------


def trace_of(question: TraceQuestion) -> Trace:
    """The recorded trace of a question, read once."""
    for folder in library.folders("questions"):
        path = folder / question.trace
        if path.is_file():
            return _read(path)
    raise ValueError(f"question {question.id}: no file {question.trace}")


@lru_cache(maxsize=32)
def _read(path: Path) -> Trace:
    return Trace.read_jsonl(path)


def step_table(trace: Trace) -> Table:
    """One row a step: when, who decoded, whose prompt was computed, what waits, blocks in use."""
    preempts = any(step.preempted for step in trace.steps)
    head = ["step", "start", "took", "decodes", "prompt tokens", "waiting", "blocks"]
    rows = [_cells(step) for step in trace.steps]
    if preempts:
        head.append("preempted")
        rows = [
            [*row, " ".join(step.preempted)] for row, step in zip(rows, trace.steps, strict=True)
        ]
    return Table(_caption(trace), tuple(head), tuple(tuple(row) for row in rows))


def _cells(step: StepRecord) -> list[str]:
    prompts = [f"{name}: {n:,}" for name, n, _, decodes in step.scheduled if not decodes]
    return [
        str(step.index),
        f"{step.t_start / MS:.1f}",
        f"{(step.t_end - step.t_start) / MS:.1f}",
        " ".join(name for name, _, _, decodes in step.scheduled if decodes),
        ", ".join(prompts),
        str(step.num_waiting),
        str(step.blocks_used),
    ]


def _caption(trace: Trace) -> str:
    meta = trace.meta
    where = "Simulated" if trace.simulated else "Measured on the real engine"
    config = meta.get("config", {})
    requests = ", ".join(
        f"{r.request_id} {r.class_name} {r.prompt_tokens:,} in"
        for r in trace.requests.values()
        if r.prompt_tokens is not None
    )
    return (
        f"{where}: {meta.get('model')} on {meta.get('hardware', 'an unnamed machine')}, "
        f"{str(meta.get('policy', 'chunked')).lower()}, budget "
        f"{config.get('max_num_batched_tokens', 0):,} tokens, seed {meta.get('seed')}; ms. "
        f"Requests: {requests}."
    )
