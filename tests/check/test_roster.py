"""A class's roster, its key and its sheets."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from llmlab.check.library import items
from llmlab.check.roster import Enrolled, new_key, read_key, read_roster, sheet_name
from llmlab.check.sheets import numbers_of
from llmlab.check.student import Student, from_sheet, load_sheet, make_sheet


def _roster(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "roster.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "text",
    [
        'id,name\n1,"Lovelace, Ada"\n2,Björk "B" Ñandú\n',
        'Name;ID\n"Lovelace, Ada";1\n"Björk ""B"" Ñandú";2\n',
        '\ufeffname\tid\temail\r\nLovelace, Ada\t1\tx\r\nBjörk "B" Ñandú\t2\ty\r\n\r\n',
    ],
)
def test_quotes_commas_and_other_alphabets_are_read(tmp_path: Path, text: str) -> None:
    want = [Enrolled("1", "Lovelace, Ada"), Enrolled("2", 'Björk "B" Ñandú')]
    assert read_roster(_roster(tmp_path, text)) == want


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,name\n1,Ada\n1,Bob\n", "rows 2 and 3 have the same id '1'"),
        ("name\nAda\nAda\n", "add a column `id`"),
        ("id\n1\n", "column `name` is missing"),
        ("id,name\n1,\n", "row 2: name is empty"),
        ("id,name\n,Ada\n", "row 2: id is empty"),
        ("id,name\n1\n", "row 2 has 1 of 2 columns"),
        ("name\n", "no students"),
        ("", "column `name`"),
        (b"name\n\xff\xfe\n", "UTF-8"),
        ('name\n"Ada\n', "not CSV"),
        ("name\n" + "x" * 500 + "\n", "row 2"),
    ],
)
def test_a_roster_that_cannot_be_used_says_where(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_roster(_roster(tmp_path, text))


def test_one_spelling_of_a_name_whatever_its_bytes() -> None:
    assert Student("Zoe\u0308  B") == Student("Zoë B")


def test_a_key_is_new_secret_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    new_key(path)
    assert len(read_key(path)) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        new_key(path)
    (tmp_path / "short").write_text("abc")
    with pytest.raises(ValueError, match="16"):
        read_key(tmp_path / "short")
    with pytest.raises(ValueError, match="new-key"):
        read_key(tmp_path / "none")


def test_a_sheet_has_the_numbers_that_the_key_draws(tmp_path: Path) -> None:
    student = Student("s1", key=b"the key of this course")
    path = tmp_path / "sheet.json"
    path.write_text(json.dumps(make_sheet(student, numbers_of)))
    loaded, _ = load_sheet(path)
    assert loaded.fingerprint == student.fingerprint
    for item in items().values():
        assert item.parameters_for(loaded) == item.parameters_for(student)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"},
        {"version": 9},
        {"name": ""},
        {"name": 3},
        {"fingerprint": "<b>"},
        {"numbers": []},
        {"numbers": {"b11": 3}},
        {"numbers": {"b11": {"wait": True}}},
        {"numbers": {"b11": {"wait": float("nan")}}},
        {"numbers": {"b11": {"wait": [1]}}},
    ],
)
def test_a_sheet_that_was_tampered_with_is_refused(change: dict[str, object]) -> None:
    sheet = make_sheet(Student("s1"), numbers_of)
    with pytest.raises(ValueError, match="sheet"):
        from_sheet({**sheet, **change})


def test_sheet_files_have_plain_names() -> None:
    names = {sheet_name(Student(n)) for n in ("../../etc/x", "李小龙", "a b", "A-B", "<script>")}
    assert len(names) == 5
    assert all(set(n) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for n in names)
