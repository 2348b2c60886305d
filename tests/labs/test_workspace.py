"""A student's work is never overwritten, and a reset keeps what was there."""

import pytest

from llmlab.labs import workspace


@pytest.fixture
def labs(tmp_path, monkeypatch):
    folder = tmp_path / "labs"
    folder.mkdir()
    for name in ("00_start", "01_two_phases"):
        (folder / f"{name}.ipynb").write_text("shipped " + name)
    monkeypatch.setattr(workspace, "labs_path", lambda *parts: folder.joinpath(*parts))
    return tmp_path / "my work ü"


def test_the_first_copy_brings_every_lab_and_the_second_changes_nothing(labs):
    assert [c.state for c in workspace.copy_labs(labs)] == ["new", "new"]
    (labs / "01_two_phases.ipynb").write_text("mine")
    assert [c.state for c in workspace.copy_labs(labs)] == ["as shipped", "yours"]
    assert (labs / "01_two_phases.ipynb").read_text() == "mine"


def test_reset_restores_and_keeps_every_backup(labs):
    workspace.copy_labs(labs)
    target = labs / "01_two_phases.ipynb"
    for number in (1, 2):
        target.write_text(f"mine {number}")
        path, backup = workspace.reset(labs, "01")
        assert path == target
        assert path.read_text() == "shipped 01_two_phases"
        assert backup is not None
        assert backup.read_text() == f"mine {number}"


def ship(labs, name: str, text: str) -> None:
    (workspace.labs_path() / f"{name}.ipynb").write_text(text)


def states(labs) -> list[str]:
    return [copy.state for copy in workspace.copy_labs(labs)]


def test_a_newer_lab_replaces_only_what_was_never_touched(labs):
    workspace.copy_labs(labs)
    mine = labs / "01_two_phases.ipynb"
    mine.write_text("mine")
    ship(labs, "00_start", "newer 00")
    ship(labs, "01_two_phases", "newer 01")
    assert states(labs) == ["updated", "yours, of an older lab"]
    assert (labs / "00_start.ipynb").read_text() == "newer 00"
    assert mine.read_text() == "mine"
    assert states(labs) == ["as shipped", "yours, of an older lab"]
    _, backup = workspace.reset(labs, "01")
    assert backup is not None
    assert (mine.read_text(), backup.read_text()) == ("newer 01", "mine")
    mine.write_text("mine again")
    assert states(labs) == ["as shipped", "yours"]


def test_without_a_record_every_changed_lab_is_the_student_s(labs):
    workspace.copy_labs(labs)
    (labs / "01_two_phases.ipynb").write_text("mine")
    ship(labs, "01_two_phases", "newer 01")
    for kept in ("", "[]", '{"01_two_phases": 7}', None):
        if kept is None:
            (labs / workspace.BEGUN).unlink()
        else:
            (labs / workspace.BEGUN).write_text(kept)
        assert states(labs)[1] == "yours"
        assert (labs / "01_two_phases.ipynb").read_text() == "mine"


def test_an_unknown_lab_lists_what_there_is(labs):
    with pytest.raises(ValueError, match="00_start, 01_two_phases"):
        workspace.reset(labs, "77")
