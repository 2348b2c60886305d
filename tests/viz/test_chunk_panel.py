"""The chunk panel and the verdict table: figures from the trace, limits held as written."""

from __future__ import annotations

import pytest

from llmlab.engine import load_model
from llmlab.measure.metrics import summarize
from llmlab.measure.workload import load_workload
from llmlab.sim.simulate import simulate
from llmlab.viz.figures.itl_strip import itl_strip, update_strip
from llmlab.viz.panels.chunk_panel import WHOLE, ChunkPanel, mixed
from llmlab.viz.panels.controls import REAL, SIMULATED
from llmlab.viz.trials import (
    CHAT_GAP,
    CHAT_TTFT,
    DOCUMENT_TTFT,
    Trial,
    around_longest_gap,
    limits_by_figure,
    misses,
    trial_of,
    verdict_rows,
)
from tests.viz.idle import wait_idle
from tests.viz.speed import seconds_a_move

LIMITS = {CHAT_TTFT: 700.0, CHAT_GAP: 50.0, DOCUMENT_TTFT: 2000.0}


def trial(name, ttft, gap, document, rate):
    return Trial(name, {CHAT_TTFT: ttft, CHAT_GAP: gap, DOCUMENT_TTFT: document}, rate)


PUBLISHED = [
    trial("baseline", 500, 35, 1900, 900),
    trial("larger prompt batch", 900, 70, 1500, 1080),
    trial("bounded prompt chunks", 550, 40, 1750, 1010),
]


@pytest.fixture(scope="module")
def served():
    load = load_workload("chat_and_documents").with_(stop={"num_prompts": 40})
    return simulate(
        load, "llama-3.1-8b", "h100-sxm", max_num_batched_tokens=1024, max_model_len=8448
    )


@pytest.fixture(scope="module")
def panel():
    return ChunkPanel()


def test_the_workload_s_limits_are_those_of_the_table():
    assert limits_by_figure(load_workload("chat_and_documents").limits) == LIMITS
    assert limits_by_figure(load_workload("chat_and_documents_cpu").limits) == {}


def test_the_three_published_trials_get_their_verdicts():
    assert [misses(t, LIMITS) for t in PUBLISHED] == [[], [CHAT_TTFT, CHAT_GAP], []]
    verdicts = [row[1] for row in verdict_rows(PUBLISHED, LIMITS)]
    assert verdicts == ["✓ passes all 3", "✗ fails 2 of 3", "✓ passes all 3"]
    assert verdict_rows(PUBLISHED, LIMITS)[1][2:5] == ["900 ✗ over", "70.0 ✗ over", "1,500 ✓ holds"]


def test_a_figure_equal_to_its_limit_holds_and_one_not_measured_is_not_passed():
    assert misses(trial("edge", 700, 50, 2000, 1), LIMITS) == []
    row = verdict_rows([trial("chats alone", 100, 10, None, 1)], LIMITS)[0]
    assert row[1] == "○ only 2 of 3 measured"
    assert verdict_rows(PUBLISHED, {})[0][1] == "no limits to hold"


def test_a_trial_says_what_the_summary_says(served):
    mine, summary = trial_of(served, "x"), summarize(served)
    chat, document = summary["chat"], summary["document"]
    assert mine.figures[CHAT_TTFT] == pytest.approx(chat["ttft_from_schedule"].p95)
    assert mine.figures[CHAT_GAP] == pytest.approx(chat["itl"].p95)
    assert mine.gap_p99 == pytest.approx(chat["itl"].p99)
    assert mine.figures[DOCUMENT_TTFT] == pytest.approx(document["ttft_from_schedule"].p95)
    assert mine.rate == pytest.approx(summary.all.rates.output_tok_s, rel=1e-6)
    assert mine.simulated


def test_the_window_holds_the_longest_gap(served):
    near = around_longest_gap(served)
    assert 0 < len(near.steps) < len(served.steps)
    gaps = [
        (b.t - a.t, a.t, b.t)
        for r in served.requests.values()
        if r.class_name == "chat"
        for a, b in zip(r.events[:-1], r.events[1:], strict=True)
    ]
    _, start, end = max(gaps)
    assert near.steps[0].t_start <= start
    assert end <= near.steps[-1].t_end + 1_000_000


def test_the_strip_updates_in_place(served):
    figure = itl_strip(served, 50.0, ("chat", "document"))
    assert [d.meta for d in figure.data] == ["chat", "document"]
    assert [a.text.split()[0] for a in figure.layout.annotations] == ["chat", "document", "limit"]
    served_chats = type(served)(
        meta=served.meta,
        requests={k: r for k, r in served.requests.items() if r.class_name == "chat"},
    )
    update_strip(figure, served_chats)
    assert len(figure.data) == 2
    assert len(figure.data[1].x) == 0
    assert len(figure.layout.shapes) == 1
    assert "simulated" in figure.layout.title.text


def test_the_mix_keeps_lengths_and_limits():
    for share in (0, 30, 100):
        load = mixed("chat_and_documents", share)
        count = {"chat": 0, "document": 0}
        for request in load.requests():
            count[request.class_name] += 1
        assert count["document"] == pytest.approx(4 * share, abs=1)


@pytest.mark.timing
def test_a_knob_answers_within_200_ms(panel):
    assert seconds_a_move(panel.budget.box, (256, 512, 768, 1024, 2048, 4096, 8192)) < 0.2


def test_each_move_of_a_knob_is_a_trial_and_the_last_five_stay(panel):
    for budget in (256, 512, 768, 1024, 2048, 4096, 8192):
        panel.budget.box.value = budget
    assert len(panel.trials) == 5
    assert "8192" in panel.trials[-1].name
    assert "Simulated" in panel.status.value
    assert list(panel.where.options) == [SIMULATED]


def test_larger_chunks_lengthen_the_chats_gaps(panel):
    small, large = panel.run(512), panel.run(4096)
    whole = panel.run(2048, policy=WHOLE)
    assert small.gap_p99 < 25 < 100 < large.gap_p99 < whole.gap_p99


def test_the_text_form_holds_the_table(panel):
    text = panel._repr_mimebundle_()["text/plain"]
    assert "chat gap p95 (≤ 50 ms)" in text
    assert "simulated" in text


def test_a_real_run_has_no_limits_and_says_measured():
    panel = ChunkPanel(load_model("tiny"), real_requests=4)
    panel.where.value = REAL
    panel.budget.box.value = 256
    panel.go.click()
    wait_idle(panel.live)
    assert "Measured" in panel.status.value
    assert panel._limits(panel.trace) == {}
    assert "simulated" not in panel.strip.layout.title.text
    assert not panel.go.disabled
    panel.live.start(lambda stop: panel._job(panel._size(), stop))
    panel.halt.click()
    assert panel.live.cancel(wait=5)
    assert not panel.live.busy


def test_a_real_run_without_a_model_is_a_clear_error(panel):
    with pytest.raises(ValueError, match="model"):
        panel.run(256, real=True)
