"""Online softmax in tiles: right folds pass, each usual mistake is named."""

from __future__ import annotations

import torch

from llmlab.labs.own_softmax import check_fold, fold_all, fold_tile


def fold(m, total, acc, score, v, *, of="all", total_by=True, acc_by=True):
    """Right as it stands; each keyword makes one usual mistake."""
    largest = {"all": torch.maximum(m, score.max()), "none": torch.tensor(0.0)}[of]
    shrink, p = (m - largest).exp(), (score - largest).exp()
    if of == "none":
        shrink = torch.tensor(1.0)
    total = total * (shrink if total_by else 1) + p.sum()
    return largest, total, acc * (shrink if acc_by else 1) + p @ v


def test_a_right_one_passes():
    assert check_fold(fold).state == check_fold(fold_tile).state == "correct"


MISTAKES = [
    (lambda *a: fold(*a, of="none"), "overflows"),
    (lambda *a: fold(*a, acc_by=False, total_by=False), "never shrinks"),
    (lambda *a: fold(*a, acc_by=False), "shrinks total but not acc"),
    (lambda *a: fold(*a, total_by=False), "shrinks acc but not total"),
    (lambda m, total, acc, score, v: fold(m, total, acc, 2 * score, v), "is off by"),
    (lambda *a: fold(*a)[:2], "ValueError"),
    (lambda m, total, acc: (m, total, acc), "raises TypeError"),
    (lambda m, total, acc, score, v: (m, total + 1, total), "shape [D]"),
]


def test_each_usual_mistake_is_named():
    for wrong, said in MISTAKES:
        result = check_fold(wrong)
        assert result.state == "incorrect", said
        assert said in result.message


def test_a_stub_is_not_answered_yet():
    def stub(*_):
        raise NotImplementedError

    assert check_fold(stub).state == "not answered yet"
    assert check_fold(lambda *_: ...).state == "not answered yet"
    assert check_fold(lambda *_: None).state == "not answered yet"


def test_the_tiles_do_not_matter():
    scores, v = 50 * torch.randn(37, generator=torch.Generator().manual_seed(1)), torch.eye(37)
    for tile in (1, 5, 37, 64):
        torch.testing.assert_close(fold_all(fold_tile, scores, v, tile), scores.softmax(0))
