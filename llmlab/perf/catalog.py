"""A yaml file of named entries, with errors that name the file, the entry and the near names."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

# The C parser is the same safe loader, ten times faster; not every build has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """A file's content; ValueError names the file and what is wrong with it."""
    try:
        state = path.stat()
        return _parse(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a yaml file: {error}") from error


@lru_cache(maxsize=32)
def _parse(path: Path, mtime_ns: int, size: int) -> Any:
    """A file's content; read again only when it changed, as a slider asks many times a second."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506


@dataclass(frozen=True)
class Catalog:
    """Entries of one top-level key of a yaml file. `kind` is the word used in errors."""

    path: Path
    kind: str
    entries: dict[str, dict[str, Any]]

    @classmethod
    def load(cls, path: str | Path, key: str, kind: str) -> Catalog:
        """The entries under `key`; ValueError names the file and the entry that is none."""
        path = Path(path)
        content = read_yaml(path)
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, dict) or not entries:
            raise ValueError(f"{path}: has no entries under the key {key!r}")
        for name, entry in entries.items():
            if not isinstance(entry, dict):
                raise ValueError(f"{path}: {key}.{name} = {entry!r}: must be a mapping")
            aliases = entry.get("aliases", [])
            if not isinstance(aliases, list):
                raise ValueError(f"{path}: {key}.{name}.aliases = {aliases!r}: must be a list")
        return cls(path, kind, {str(name): entry for name, entry in entries.items()})

    def resolve(self, name: str) -> str:
        """The key of `name`, whatever its case; aliases count. Unknown: near names in the error."""
        keys = {key.lower(): key for key in self.entries}
        for key, entry in self.entries.items():
            keys.update((str(alias).lower(), key) for alias in entry.get("aliases", ()))
        wanted = str(name).strip().lower()
        if wanted in keys:
            return keys[wanted]
        near = difflib.get_close_matches(wanted, keys, n=3, cutoff=0.5)
        near += [key for key in keys if wanted and wanted in key and key not in near][:3]
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise ValueError(
            f"unknown {self.kind} {name!r}: {hint}{self.path.name} has {', '.join(self.entries)}"
        )

    def entry(self, key: str, required: tuple[str, ...] = ()) -> dict[str, Any]:
        """One entry by its exact key, with the fields it must have."""
        entry = self.entries[key]
        missing = [field for field in required if field not in entry]
        if missing:
            raise ValueError(f"{self.path}: {key} lacks {', '.join(missing)}")
        return entry
