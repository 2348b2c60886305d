"""Compiled parts outlive the process that compiled them, and a damaged one harms nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from llmlab.kernels import cpu_code, cpu_compile, cpu_object

SILU = ("cpu_parts", "silu_mul", ())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The only place for code; what this process has loaded is not looked up."""
    monkeypatch.setattr(cpu_code, "_folders", lambda: iter([tmp_path / "code"]))
    monkeypatch.setattr(cpu_code, "_code", cpu_code._code.__wrapped__)
    return tmp_path / "code"


def compiles(monkeypatch):
    """How often a part is compiled from now on."""
    times, real = [], cpu_compile.compiled
    monkeypatch.setattr(cpu_compile, "compiled", lambda *part: times.append(part) or real(*part))
    return times


def test_a_part_is_compiled_once_and_lies_in_one_file(folder, monkeypatch):
    times = compiles(monkeypatch)
    assert cpu_code.code("cpu_parts", "silu_mul") != cpu_code.code("cpu_parts", "silu_mul")
    assert times == [SILU]
    assert [f.name for f in folder.iterdir()] == [f"cpu_parts.silu_mul-{cpu_code._key()}.o"]


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b"x" + b[1:]])
def test_a_damaged_file_is_made_anew(folder, monkeypatch, damage):
    cpu_code.code("cpu_parts", "silu_mul")
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    times = compiles(monkeypatch)
    assert cpu_code.code("cpu_parts", "silu_mul")
    assert times == [SILU]
    assert file.read_bytes() == whole


def test_where_nothing_can_be_written_each_process_compiles(folder, monkeypatch):
    folder.write_text("a file where the folder should be")
    times = compiles(monkeypatch)
    assert cpu_code.code("cpu_parts", "silu_mul")
    assert cpu_code.code("cpu_parts", "silu_mul")
    assert times == [SILU, SILU]


def test_another_source_version_or_processor_is_another_key(monkeypatch):
    key = cpu_code._key.__wrapped__
    here = key()
    monkeypatch.setattr(cpu_code.metadata, "version", lambda package: "0")
    other = key()
    monkeypatch.setattr(cpu_code, "processor", lambda: ("none", frozenset()))
    assert len({here, other, key()}) == 3


@pytest.mark.slow
def test_a_process_that_finds_all_parts_needs_no_compiler():
    program = (
        "import sys; from llmlab.engine import Engine, load_model\n"
        "from llmlab.sched import SamplingParams\n"
        "engine = Engine(load_model('tiny')); engine.add('hello', SamplingParams(max_tokens=2))\n"
        "while engine.has_work: engine.step()\n"
        "print([m in sys.modules for m in ('numba', 'llvmlite', 'llmlab.kernels.cpu_code')])"
    )

    def said() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        return done.stdout.strip()

    said()  # compiles what is not there yet
    assert said() == str([False, not cpu_object.can_load(), True])
