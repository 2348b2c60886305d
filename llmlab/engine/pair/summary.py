"""A pair's result in words. No torch."""

from __future__ import annotations

from llmlab.engine.pair.result import PairResult


def sentences(result: PairResult) -> str:
    """What the run showed, in words."""
    moved = [r for r in result.requests if r.moved_tokens]
    tokens = sum(r.moved_tokens for r in moved)
    says = []
    if moved:
        as_said = (
            "as the formula says"
            if result.bytes_moved == result.bytes_formula
            else (f"the formula says {result.bytes_formula:,}")
        )
        says.append(
            f"{tokens:,} prompt tokens moved: {result.bytes_moved:,} bytes, {as_said} "
            f"({result.kv_bytes_per_token:,} a token)."
        )
        says.append(
            f"They were on the wire for {result.transfer_ms:,.0f} ms, of which "
            f"{result.visible_ms:,.0f} ms came after their prefill had ended."
        )
    else:
        says.append("Nothing was moved.")
    if result.tokens_equal is not None:
        verdict = "the same" if result.tokens_equal else "NOT the same"
        says.append(f"Tokens are {verdict} as on one engine ({result.tokens_compared} compared).")
    if result.tokens_within_margin:
        says.append(
            f"{result.tokens_within_margin} of them differ, where the two best logits lie closer "
            "than float32 tells apart."
        )
    for side, how in result.workers.items():
        if how != "ok":
            says.append(f"The {side} worker: {how}.")
    return " ".join(says)
