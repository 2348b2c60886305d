"""Files that are replaced whole: the old one stands until the new one is complete."""

from __future__ import annotations

import uuid
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write UTF-8 text to `path`; on OSError what was there before is untouched."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
