"""Consoles that show text as it is."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def console(**options: Any) -> Console:
    """Nothing is read as markup, for a path may hold brackets; nothing is coloured by its look."""
    return Console(markup=False, highlight=False, **options)
