"""`llmlab labs`: the student's folder, and the author's build and check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import complain, fail

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)

EXAMPLES = (
    "Examples:  llmlab labs --open   ·   llmlab labs --reset 01_two_phases   ·   "
    "llmlab labs --check --json   ·   llmlab labs --time 03"
)
# Loopback only, no extension market, no question about news: the lab needs nothing from outside.
JUPYTER = ("--ServerApp.ip=127.0.0.1", "--LabApp.extension_manager=readonly")

# Where JupyterLab and the kernel write about themselves, if the home folder is closed to them.
JUPYTER_PLACES = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")


def _root() -> Path:
    """The checkout, for the author's commands."""
    import llmlab

    root = Path(llmlab.__file__).resolve().parent.parent
    if not (root / "labs" / "source").is_dir():
        fail("this needs a checkout of llmlab (labs/source is not here)")
    return root


@app.command(epilog=EXAMPLES)
def labs(
    work: Annotated[Path, typer.Option(help="The student's folder.")] = Path("work"),
    open_: Annotated[bool, typer.Option("--open", help="Open JupyterLab there.")] = False,
    reset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Restore one lab, keeping a backup.")
    ] = None,
    release: Annotated[
        Path | None, typer.Option(metavar="OUT.zip", help="Pack the labs without solutions.")
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="Build labs and solutions.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the series; 1 on faults.")] = False,
    time_: Annotated[
        str | None,
        typer.Option("--time", metavar="NAME", help="Run a solution, or `all`, and keep its time."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Copy the labs into work/ (never over what you changed), and list them."""
    if build:
        _build()
    elif check:
        _check(as_json)
    elif time_:
        _time(time_, as_json)
    elif release:
        _release(release)
    elif reset:
        _reset(work, reset)
    else:
        _copy(work, as_json)
        if open_:
            raise typer.Exit(open_jupyter(work))


def _copy(work: Path, as_json: bool) -> None:
    from llmlab.labs.workspace import copy_labs

    try:
        copies = copy_labs(work)
    except OSError as error:
        fail(f"cannot write to {work}: {error.strerror}; choose another with --work")
    if as_json:
        print(json.dumps([{"name": c.name, "path": str(c.path), "state": c.state} for c in copies]))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("lab")
    table.add_column("file")
    table.add_column("state")
    for copy in copies:
        table.add_row(copy.name, str(copy.path), copy.state)
    out.print(table)
    older = [copy.name for copy in copies if copy.state == "yours, of an older lab"]
    if older:
        out.print(
            f"A newer version is out of: {', '.join(older)}. Yours stays as it is. "
            f"llmlab labs --reset {older[0]} brings the new one and keeps yours as a backup; "
            "recorded answers count on."
        )


def _reset(work: Path, name: str) -> None:
    from llmlab.labs.workspace import reset

    try:
        path, backup = reset(work, name)
    except ValueError as error:
        fail(error)
    except OSError as error:
        fail(f"cannot write to {work}: {error.strerror}; choose another with --work")
    out.print(f"restored {path}", soft_wrap=True)
    if backup:
        out.print(f"what was there is kept as {backup}", soft_wrap=True)


def open_jupyter(work: Path) -> int:
    """Run JupyterLab in `work` until Ctrl-C; returns its exit status."""
    first = sorted(work.glob("[0-9]*.ipynb"))
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        *JUPYTER,
        f"--ServerApp.root_dir={work.resolve()}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # as in a container; it listens on loopback only
    if first:
        command.append(f"--LabApp.default_url=/lab/tree/{first[0].name}")
    out.print("Opening JupyterLab. Stop it with Ctrl-C here; your work stays in", f"{work}/.")
    with tempfile.TemporaryDirectory(prefix="llmlab-jupyter-") as spare:
        environment = jupyter_environment()
        if not _home_is_writable():
            environment |= dict.fromkeys(JUPYTER_PLACES, spare)
            err.print(
                "Your home folder cannot be written: JupyterLab's settings will not be kept. For "
                "progress that stays, set LLMLAB_DATA_DIR to a folder that can be written.",
                soft_wrap=True,
            )
        try:
            return subprocess.call(command, env=environment)
        except KeyboardInterrupt:
            return 130


def _home_is_writable() -> bool:
    from jupyter_core.paths import jupyter_runtime_dir

    try:
        Path(jupyter_runtime_dir()).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=jupyter_runtime_dir()):
            return True
    except OSError:
        return False


def jupyter_environment() -> dict[str, str]:
    """Environment for a JupyterLab that runs this installation's kernel and our page settings."""
    import llmlab.labs

    ours = Path(llmlab.labs.__file__).parent / "jupyter_config"
    known = os.environ.get("JUPYTER_CONFIG_PATH", "")
    return {
        **os.environ,
        # The kernel of this installation, not one of the same name in the user's home.
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, (str(ours), known))),
    }


def _build() -> None:
    from llmlab.labs.build import SourceError, build_all

    root = _root()
    try:
        changed = build_all(root)
    except SourceError as error:
        fail(error)
    for path in changed:
        out.print(f"built {path.relative_to(root)}", soft_wrap=True)
    out.print(f"{len(changed)} changed")


def _check(as_json: bool) -> None:
    from llmlab.labs.check import check_labs

    result = check_labs(_root())
    bad = {key: value for key, value in result.items() if key != "labs" and value}
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        out.print(f"{len(result['labs'])} labs: {', '.join(result['labs'])}", soft_wrap=True)
        for key, values in bad.items():
            err.print(key, style="red")
            for value in values:
                err.print(f"  {value}", soft_wrap=True)
        if not bad:
            out.print("in sync, nothing leaked, nothing missing")
    raise typer.Exit(1 if bad else 0)


def _release(target: Path) -> None:
    from llmlab.labs.workspace import shipped

    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for lab in shipped():
                # A fixed date keeps the archive the same for the same labs.
                info = zipfile.ZipInfo(f"labs/{lab.name}", date_time=(2026, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, lab.read_bytes())
    except OSError as error:
        fail(f"cannot write {target}: {error.strerror}")
    out.print(f"packed {len(shipped())} labs into {target}", soft_wrap=True)


def _time(name: str, as_json: bool) -> None:
    """Time one solution or all; kept in data/results/labs.json and solutions/README.md."""
    from llmlab.labs import timing

    root = _root()
    solutions = sorted((root / "solutions").glob("[0-9]*.ipynb"))
    wanted = [p for p in solutions if name in ("all", p.stem, p.stem.split("_")[0])]
    if not wanted:
        fail(f"no lab {name!r}; there are: all, {', '.join(p.stem for p in solutions)}")
    kept = root / "data" / "results" / "labs.json"
    # Small sizes are a trial run: they are shown, and only full ones are kept.
    fast = bool(os.environ.get("LLMLAB_FAST"))
    content: dict[str, Any] = {} if fast else timing.read(kept)
    try:
        for path in wanted:
            with err.status(path.stem) as line:
                measured = timing.time_lab(
                    path, progress=lambda s, i, of: line.update(f"{s}: cell {i + 1} of {of}")
                )
            content = timing.with_times(content, [measured])
            if not fast:
                timing.write(kept, content)
            if not as_json:
                out.print(f"{path.stem:<24}{measured.seconds:6.1f} s")
    except RuntimeError as error:
        complain(error)
        raise typer.Exit(1) from None
    if not fast:
        timing.write_page(root / "solutions" / "README.md", content)
    if as_json:
        print(json.dumps(content, indent=1))
    late = [p.stem for p in wanted if content["labs"][p.stem]["seconds"] > timing.LIMIT_S]
    if late:
        err.print(f"over {timing.LIMIT_S:.0f} s: {', '.join(late)}", soft_wrap=True)
    raise typer.Exit(1 if late else 0)
