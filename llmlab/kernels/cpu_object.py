"""Loads an object file of LLVM's into this process, without LLVM.

What a just-in-time compiler makes for x86-64 has one kind of gap: addresses, written out in full.
So its sections are copied to one place and the addresses filled in. LLVM's own loader can do far
more, and brings 60 MB into each process.

Format: System V ABI, chapter 4 "Object Files", and its AMD64 supplement, section 4.4.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

MAGIC, X86_64 = b"\x7fELF\x02\x01\x01", 62
LOADED = 0x2  # flag of a section
SYMBOLS, GAPS, ZEROS = 2, 4, 8  # kinds of sections
ABSOLUTE, COMMON = 0xFFF1, 0xFFF2  # in place of a symbol's section; 0: it lies elsewhere
ADDRESS = 1  # R_X86_64_64
UNWINDING = ".eh_frame"  # for exceptions; parts raise none

FILE, SECTION = Struct("<16sHHIQQQIHHHHHH"), Struct("<IIQQQQIIQQ")
SYMBOL, GAP, WORD = Struct("<IBBHQQ"), Struct("<QIIq"), Struct("<Q")


class Section(NamedTuple):
    name: str
    kind: int
    loaded: bool
    size: int
    align: int
    link: int  # number of the section that this one's names are in
    of: int  # number of the section that these gaps are in
    data: bytes


class Symbol(NamedTuple):
    name: str
    section: int
    value: int  # its offset in that section
    size: int


class Unknown(Exception):
    """The file holds something that this loader does not know, or needs an unknown name."""


def load(made: bytes, wanted: str, address_of: Callable[[str], int]) -> tuple[mmap.mmap, int]:
    """The memory, to be kept as long as its code is called, and the address of `wanted`.

    address_of: where a name lies that the file only uses; LookupError if nowhere. Raises `Unknown`,
    and OSError where the system gives no memory for code.
    """
    if not can_load():
        raise Unknown(f"{platform.system()} on {platform.machine()}")
    sections = _sections(made)
    symbols = _symbols(sections)
    places, size = _places(sections, symbols)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, section in enumerate(sections):
        if number in places and section.kind != ZEROS:
            memory[places[number] : places[number] + section.size] = section.data

    def address(symbol: Symbol) -> int:
        if symbol.section == ABSOLUTE:
            return symbol.value
        if symbol.section in places:
            return base + places[symbol.section] + symbol.value
        if symbol.section:
            raise Unknown(f"{symbol.name}: in section {symbol.section}, which is not loaded")
        try:
            return address_of(symbol.name)
        except LookupError as error:
            raise Unknown(f"{symbol.name}: not found") from error

    for section in sections:
        if section.kind == GAPS and section.of in places:
            for offset, kind, number, addend in GAP.iter_unpack(section.data):
                if kind != ADDRESS:
                    raise Unknown(f"a gap of kind {kind}")
                value = (address(symbols[number]) + addend) % 2**64
                WORD.pack_into(memory, places[section.of] + offset, value)
    _make_code(base, size)
    return memory, address(next(s for s in symbols if s.name == wanted))


def can_load() -> bool:
    """Is this a system whose files and calls are known here?"""
    return platform.system() == "Linux" and platform.machine() == "x86_64"


def _sections(made: bytes) -> list[Section]:
    magic, _, machine, _, _, _, at, _, _, _, _, each, count, names = FILE.unpack_from(made)
    if not magic.startswith(MAGIC) or machine != X86_64:
        raise Unknown("no object file for x86-64")
    headers = [SECTION.unpack_from(made, at + i * each) for i in range(count)]
    text = made[headers[names][4] :]
    return [
        Section(
            name=_name(text, name),
            kind=kind,
            loaded=bool(flags & LOADED),
            size=size,
            align=max(align, 1),
            link=link,
            of=info,
            data=made[offset : offset + size],
        )
        for name, kind, flags, _, offset, size, link, info, align, _ in headers
    ]


def _symbols(sections: list[Section]) -> list[Symbol]:
    table = next(s for s in sections if s.kind == SYMBOLS)
    text = sections[table.link].data
    return [
        Symbol(_name(text, name), section, value, size)
        for name, _, _, section, value, size in SYMBOL.iter_unpack(table.data)
    ]


def _places(sections: list[Section], symbols: list[Symbol]) -> tuple[dict[int, int], int]:
    """Where each section goes, by number, and the size of all; common symbols share one place.

    They are numba's pointers for raising errors, are read by nothing else and stay zero.
    """
    places, end = {}, 0
    for number, section in enumerate(sections):
        if section.loaded and section.name != UNWINDING:
            places[number] = end + -end % section.align
            end = places[number] + section.size
    places[COMMON] = end + -end % mmap.PAGESIZE
    most = max((s.value + s.size for s in symbols if s.section == COMMON), default=1)
    return places, places[COMMON] + most


def _name(text: bytes, at: int) -> str:
    return text[at : text.index(b"\0", at)].decode()


def _make_code(base: int, size: int) -> None:
    """From here on the memory can be run, and no longer written."""
    libc = ctypes.CDLL(None, use_errno=True)
    protect = ctypes.c_void_p(base), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC
    if libc.mprotect(*protect):
        raise OSError(ctypes.get_errno(), "mprotect")
