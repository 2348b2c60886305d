"""Every test of the checker has a data folder of its own, and no name from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmlab.check.store import Store


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(folder))
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    monkeypatch.delenv("LLMLAB_ITEMS", raising=False)
    return folder


@pytest.fixture
def store() -> Store:
    return Store(None)
