"""The notices name every package that the project asks for, and none that it does not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


def asked_for() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return {Requirement(line).name.lower() for line in lines} - {project["name"]}


def named() -> set[str]:
    text = (ROOT / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!package|---)([^|]+) \|", text, flags=re.MULTILINE)
    return {name.strip().lower() for row in rows for name in row.split(",")}


def test_every_package_has_its_licence_named():
    assert named() == asked_for()
