"""Where the data files are: in the checkout's `data/`, or inside the installed wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(checkout: str, packaged: str) -> Path:
    beside = _PACKAGE.parent / checkout
    # The marker tells our checkout from a stranger's folder of the same name in site-packages.
    if (_PACKAGE.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return _PACKAGE / packaged


def data_path(*parts: str) -> Path:
    """Path of a data file or folder, e.g. `data_path("workloads", "burst.yaml")`."""
    return _folder("data", "_data").joinpath(*parts)


def labs_path(*parts: str) -> Path:
    """Path of a lab notebook or of the folder of them."""
    return _folder("labs", "_labs").joinpath(*parts)
