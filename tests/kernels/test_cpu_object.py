"""Code that is loaded without LLVM is what LLVM would have loaded, or LLVM loads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("numba")

from llmlab.kernels import cpu_code, cpu_compile, cpu_object, cpu_width
from llmlab.kernels.cpu_team import Part, address_of

pytestmark = pytest.mark.skipif(not cpu_object.can_load(), reason="LLVM loads code here")


@pytest.fixture(scope="module")
def silu():
    """Symbol and object file of a part."""
    return cpu_compile.compiled("cpu_parts", "silu_mul", ())


def silu_by(address):
    both = torch.linspace(-9, 9, 2 * 37).view(1, 2, 37)
    out = torch.full((1, 37), torch.nan)
    part = Part(address, sizes=2, addresses=3)
    part.sizes[:] = [1, 37]
    part.addresses[1:3] = [both.data_ptr(), out.data_ptr()]
    part.run(True)
    return out


def test_a_part_computes_what_it_computes_when_llvm_loads_it(silu):
    symbol, made = silu
    memory, ours = cpu_object.load(made, symbol, address_of)
    engine, theirs = cpu_compile.load(made, symbol)
    assert torch.isfinite(silu_by(ours)).all()
    assert torch.equal(silu_by(ours), silu_by(theirs))
    del memory, engine


def test_code_can_be_run_and_not_be_written(silu):
    memory, address = cpu_object.load(silu[1], silu[0], address_of)
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
        if int(first, 16) <= address < int(last, 16):
            assert rights == "r-xp"
            break
    else:
        pytest.fail("the address is not mapped")
    assert memory


def another_kind_of_gap(made):
    """The same file with one relocation of a kind that this loader does not know."""
    sections = cpu_object._sections(made)
    gaps = next(s for s in sections if s.kind == cpu_object.GAPS and sections[s.of].loaded)
    at = made.index(gaps.data) + 8
    return made[:at] + b"\x02" + made[at + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        another_kind_of_gap,
        lambda made: b"MZ" + made[2:],
        lambda made: made[:18] + b"\xb7" + made[19:],
    ],
    ids=["gap", "no object file", "another processor"],
)
def test_what_it_does_not_know_it_says(silu, change):
    with pytest.raises(cpu_object.Unknown):
        cpu_object.load(change(silu[1]), silu[0], address_of)


def nowhere(name):
    raise LookupError(name)


def test_a_name_that_lies_nowhere_is_named(silu):
    with pytest.raises(cpu_object.Unknown, match=r"llmlab_thread_rank|Py|numba"):
        cpu_object.load(silu[1], silu[0], nowhere)


@pytest.mark.parametrize("error", [cpu_object.Unknown("a gap of kind 2"), OSError("forbidden")])
def test_where_it_cannot_llvm_does(monkeypatch, silu, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr(cpu_object, "load", refuse)
    assert torch.isfinite(silu_by(cpu_code._load(*silu))).all()


# ---------------------------------------------------------------- the processor

X86 = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 1\nflags\t\t: fpu {}\n\nprocessor\t: 1\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd fphp\nCPU part\t: 0xd0c\n"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Another machine's description of itself."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu_width, "CPUINFO", file)
    monkeypatch.setattr(cpu_width, "processor", cpu_width.processor.__wrapped__)
    return file


@pytest.mark.parametrize(
    ("text", "width"),
    [
        (X86.format("avx2 f16c"), 8),
        (X86.format("avx2 f16c avx512f"), 16),
        (X86.format("avx2"), 0),
        (ARM, 4),
    ],
)
def test_a_processors_registers(cpuinfo, text, width):
    cpuinfo.write_text(text)
    assert cpu_width.vector_width.__wrapped__() == width


def test_where_the_system_says_nothing_llvm_is_asked(cpuinfo):
    from_llvm = cpu_width.processor()
    assert all(from_llvm)
    cpuinfo.write_text("nothing of use\n")
    assert cpu_width.processor() == from_llvm


def test_two_processors_with_the_same_features_are_two(cpuinfo):
    cpuinfo.write_text(X86.format("avx2"))
    one = cpu_width.processor()
    cpuinfo.write_text(X86.format("avx2").replace("AuthenticAMD", "GenuineIntel"))
    assert cpu_width.processor() != one
