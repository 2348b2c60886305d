"""One source gives two notebooks, always the same bytes, and never leaks an answer."""

import json

import pytest

from llmlab.labs.build import SourceError, build, parse, to_bytes
from llmlab.labs.check import frame_faults, leaked_lines, leaked_values

SOURCE = """\
# %% [markdown] name="title" covers=["A1"]
# # Two phases

# %% name="blank"
before = 1
### BEGIN SOLUTION stub: ttft_ms = ...
ttft_ms = 12345
### END SOLUTION

# %% name="function"
def double(x):
    ### BEGIN SOLUTION
    return x + x
    ### END SOLUTION

# %% name="teacher" tags=["solution-only"]
assert double(2) == 4

# %% name="student" tags=["lab-only"]
print("your turn")
"""


def cells(kind: str, text: str = SOURCE) -> list[str]:
    return ["".join(c["source"]) for c in parse(text, "x/99_demo.py").notebook(kind)["cells"]]


def test_the_lab_holds_the_stub_and_the_solution_holds_the_answer():
    assert "ttft_ms = ..." in cells("lab")[1]
    assert "ttft_ms = 12345" in cells("solution")[1]
    assert "BEGIN" not in "".join(cells("solution") + cells("lab"))


def test_a_function_body_becomes_not_implemented_at_its_own_indent():
    assert "    raise NotImplementedError(" in cells("lab")[2]
    assert "x + x" not in "".join(cells("lab"))


def test_tagged_cells_appear_in_one_notebook_only():
    assert not any("assert double" in c for c in cells("lab"))
    assert not any("your turn" in c for c in cells("solution"))


def test_the_same_source_gives_the_same_bytes(tmp_path):
    path = tmp_path / "99_demo.py"
    path.write_text(SOURCE)
    assert build(path) == build(path)
    notebook = json.loads(build(path)[0])
    assert notebook["nbformat_minor"] == 5
    assert all(not c.get("outputs") for c in notebook["cells"])
    assert len({c["id"] for c in notebook["cells"]}) == len(notebook["cells"])


BAD = [
    ('# %% name="a"\n### BEGIN SOLUTION\nx = 1\n', 2, "BEGIN without END"),
    ('# %% name="a"\nx = 1\n### END SOLUTION\n', 3, "END without BEGIN"),
    (
        '# %% name="a"\n### BEGIN SOLUTION\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n',
        3,
        "BEGIN inside",
    ),
    ('# %% name="a"\nx = 1  ### BEGIN SOLUTION\n### END SOLUTION\n', 2, "not alone"),
    ('# %% name="a"\n### BEGIN SOLUTION\n\n### END SOLUTION\n', 4, "empty"),
    ("# %%\nx = 1\n", 1, "without a name"),
    ('# %% name="a"\nx = 1\n\n# %% name="a"\ny = 2\n', 4, "twice"),
]


def test_a_bad_marker_is_an_error_with_file_and_line():
    for bad, line, what in BAD:
        with pytest.raises(SourceError, match=what) as caught:
            parse(bad, "labs/source/01_x.py").blanks()
        assert str(caught.value).startswith(f"labs/source/01_x.py:{line}:")


def test_the_leak_scan_sees_an_answer_that_stands_elsewhere_in_the_lab():
    leaky = SOURCE + '\n# %% name="oops"\nttft_ms = 12345\n'
    source = parse(leaky, "x/99_demo.py")
    lab = source.notebook("lab")
    assert leaked_lines(source, lab) == ["99_demo: blank: ttft_ms = 12345"]
    assert leaked_values(source, lab) == ["99_demo: blank: value 12345"]
    clean = parse(SOURCE, "x/99_demo.py")
    assert leaked_lines(clean, clean.notebook("lab")) == []
    assert leaked_values(clean, clean.notebook("lab")) == []


def test_bytes_end_in_one_newline_and_keep_unicode():
    data = to_bytes({"cells": ["é"]})
    assert data.endswith(b"]\n}\n")
    assert "é".encode() in data


FRAMED = """\
# %% [markdown] name="title"
# # Two phases
# **Answer this first**, aloud: why?

# %% [markdown] name="wrap"
# ## Wrap-up
# The short answer: because. **Interview questions this lab prepares**: why?
"""


def test_a_lab_without_its_frame_is_a_fault():
    assert frame_faults(parse(FRAMED, "x/98_demo.py")) == []
    for cut, missing in (
        ("**Answer this first**", "Answer this first"),
        ("## Wrap-up", "## Wrap-up"),
        ("short answer", "the short and the full answer"),
        ("**Interview questions this lab prepares**", "interview questions"),
    ):
        (fault,) = frame_faults(parse(FRAMED.replace(cut, "-"), "x/98_demo.py"))
        assert missing in fault


def test_a_drawing_keeps_its_lines_and_scrolls():
    lines = ["Look:", "", "```text", "a  <- b", "", "c & d", "```", "", "Then."]
    text = "\n".join(['# %% [markdown] name="p"', *(f"# {line}" for line in lines)])
    lab = parse(text, "x.py").notebook("lab")
    shown = "".join(lab["cells"][0]["source"]).splitlines()
    assert shown == [
        *("Look:", ""),
        '<pre style="white-space:pre;overflow-x:auto">',
        *("a  &lt;- b", "", "c &amp; d", "</pre>", "", "Then."),
    ]
