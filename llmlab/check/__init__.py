"""The checker: worksheets, questions, per-student numbers, progress, grading. No torch, no widgets.

from llmlab.check import check, hint, load_worksheet, progress
check("B11.ttft", "0.4 s")
"""

from __future__ import annotations

from llmlab.check.checker import check, hint, progress
from llmlab.check.library import find_item, load_worksheet
from llmlab.check.result import Result
from llmlab.check.student import Student, current_student

__all__ = [
    "Result",
    "Student",
    "check",
    "current_student",
    "find_item",
    "hint",
    "load_worksheet",
    "progress",
]
