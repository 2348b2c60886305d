"""Progress: appended, safe from kills, several writers, no loss."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from llmlab.check import check, rescue
from llmlab.check.result import Result
from llmlab.check.store import Store, default_store
from llmlab.check.student import Student

WRITER = """
import sys
from pathlib import Path
from llmlab.check.store import Store
store = Store(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    store.add("attempt", f"{sys.argv[2]}.{n}", {"answer": n})
    print(n, flush=True)
"""


def _writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_kernel_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "progress.db"
    writer = _writer(path, "A", 100_000)
    assert writer.stdout is not None
    confirmed = [int(writer.stdout.readline()) for _ in range(25)]
    os.kill(writer.pid, signal.SIGKILL)
    confirmed += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    kept = {e.data["answer"] for e in Store(path).events()}
    assert set(confirmed) <= kept
    assert len(kept) <= len(confirmed) + 1


@pytest.mark.slow
def test_several_kernels_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "progress.db"
    writers = [_writer(path, name, 30) for name in "ABCD"]
    assert [w.wait(timeout=60) for w in writers] == [0] * 4
    for w in writers:
        assert w.stdout is not None
        w.stdout.close()
    items = [e.item for e in Store(path).events()]
    assert sorted(items) == sorted(f"{name}.{n}" for name in "ABCD" for n in range(30))


def test_threads_of_one_kernel_share_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "p.db")
    threads = [
        threading.Thread(target=lambda n=n: [store.add("attempt", f"T{n}", {}) for _ in range(20)])
        for n in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(list(store.events())) == 80


def test_attempts_are_only_added_with_time_state_hints_and_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "p.db")
    check("B11.ttft", 1, store=store, student=Student("Ada"))
    check("B11.ttft", "0.305 s", store=store, student=Student("Ada"))
    first, second = store.events("attempt")
    assert (first.data["answer"], second.data["answer"]) == (1, "0.305 s")
    assert [first.data["state"], second.data["state"]] == ["incorrect", "correct"]
    assert second.student == "Ada"
    assert second.data["fingerprint"] == Student("Ada").fingerprint
    assert {"hints", "version", "score", "understood", "misconception"} <= set(second.data)
    assert first.time <= second.time


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_keeps_progress_in_memory_with_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.warns(RuntimeWarning, match="kept in memory"):
            store = Store(tmp_path / "p.db")
    finally:
        tmp_path.chmod(0o700)
    store.add("attempt", "B11.ttft", {})
    assert len(list(store.events())) == 1


def test_a_folder_that_cannot_be_made_keeps_progress_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="LLMLAB_DATA_DIR"):
        store = Store(tmp_path / "file" / "p.db")
    store.add("attempt", "B11.ttft", {})
    assert len(list(store.events())) == 1


def test_a_disk_that_refuses_later_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.db"
    store = Store(path)
    store.add("attempt", "one", {})
    store._db.execute("PRAGMA query_only=ON")
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        store.add("attempt", "two", {})
    store.add("attempt", "three", {})
    assert [e.item for e in store.events()] == ["one", "two", "three"]
    assert [e.item for e in Store(path).events()] == ["one"]


def test_a_full_disk_is_called_full(tmp_path: Path) -> None:
    store = Store(tmp_path / "p.db")
    store._db.execute("PRAGMA max_page_count=8")
    with pytest.warns(RuntimeWarning, match="is full"):
        store.add("attempt", "long", {"answer": "y" * 50_000})
    assert len(list(store.events())) == 1


def test_what_was_saved_is_read_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is only in the write-ahead log, as a killed kernel leaves it."""
    path = tmp_path / "p.db"
    other = Store(path)
    other.add("attempt", "one", {})
    assert path.with_name("p.db-wal").stat().st_size > 0
    real = Store._connect

    def refuse(where: str) -> sqlite3.Connection:
        if where != ":memory:":
            raise sqlite3.OperationalError("database or disk is full")
        return real(where)

    monkeypatch.setattr(Store, "_connect", staticmethod(refuse))
    for way in (rescue._read_only, rescue._from_copy):
        assert [row[3] for row in way(path)] == ["one"]
    with pytest.warns(RuntimeWarning, match="kept in memory"):
        store = Store(path)
    store.add("attempt", "two", {})
    assert [e.item for e in store.events()] == ["one", "two"]
    assert store.trouble
    assert not store.unread


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    path.write_bytes(b"my diary" * 200)
    with pytest.warns(RuntimeWarning):
        store = Store(path)
    assert store.unread, "so that nobody hands in nothing"
    store.add("attempt", "one", {})
    assert path.read_bytes() == b"my diary" * 200


def test_a_busy_writer_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    store = Store(path)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    release.start()
    started = time.monotonic()
    store.add("attempt", "one", {})
    assert time.monotonic() - started > 0.2
    release.join()
    other.close()
    assert len(list(store.events())) == 1


def test_export_and_import_are_inverse_and_import_twice_adds_nothing(tmp_path: Path) -> None:
    one, two = Store(tmp_path / "1.db"), Store(tmp_path / "2.db")
    one.record("B11.ttft", "0,4 é\n", Result("B11.ttft", "error", "m"), Student("Zoë"))
    one.record_hint("B11.ttft", 1, Student("Zoë"))
    file = tmp_path / "all.jsonl"
    assert one.export_jsonl(file) == 2
    assert two.import_jsonl(file) == 2
    assert two.import_jsonl(file) == 0
    assert list(two.events()) == list(one.events())


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "nonsense",
        '{"uid": 1}',
        "[" * 5000,
        '{"uid":"a","time":"b","kind":"c","item":"d","student":"e","data":3}',
    ],
)
def test_a_line_that_is_no_event_is_named_and_nothing_is_added(tmp_path: Path, line: str) -> None:
    store = Store(tmp_path / "p.db")
    good = {"uid": "u", "time": "t", "kind": "k", "item": "i", "student": "s", "data": {}}
    file = tmp_path / "all.jsonl"
    file.write_text(json.dumps(good) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"all\.jsonl:2"):
        store.import_jsonl(file)
    assert list(store.events()) == []


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match=r"all\.jsonl: not text"):
        Store(None).import_jsonl(tmp_path / "all.jsonl")


def test_the_default_store_follows_the_data_folder(data_dir: Path) -> None:
    default_store().add("attempt", "one", {})
    assert (data_dir / "progress.db").is_file()
    assert default_store() is default_store()
