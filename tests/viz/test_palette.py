"""Every series colour can be told from a white page and from a dark one."""

from itertools import product

from llmlab.viz import palette

WHITE, DARK = "#FFFFFF", "#111111"


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.x, 0 (black) to 1 (white)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_at_least_three_to_one():
    for colour, page in product(palette.SERIES, (WHITE, DARK)):
        assert contrast(colour, page) >= 3.0, (colour, page)


def test_white_text_on_a_bar_is_readable():
    assert all(contrast("#FFFFFF", c) >= 3.0 for c in (palette.PREFILL, palette.DECODE))
