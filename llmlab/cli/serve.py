"""`llmlab serve`: the engine behind an OpenAI-compatible HTTP API on this machine."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from llmlab.cli.console import console
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.config import EngineConfig
    from llmlab.serve.settings import ServeConfig

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)

KEY_VARIABLE = "LLMLAB_API_KEY"
EXAMPLES = (
    "Examples:  llmlab serve   ·   llmlab serve --model tiny --port 0 --json   ·   "
    "llmlab serve --max-num-seqs 16 --max-num-batched-tokens 128   ·   "
    "curl http://127.0.0.1:8000/v1/models"
)


@app.command(epilog=EXAMPLES)
def serve(
    model: Annotated[
        str,
        typer.Option(help="smollm2-135m, tiny, tiny-qwen3, a folder, a .gguf file or a hub name."),
    ] = "smollm2-135m",
    served_model_name: Annotated[
        str | None, typer.Option(help="Name in the API; the model's own if not given.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to bind; others than this machine's need an API key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the API key in its first line; else ${KEY_VARIABLE}."),
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of one step.", show_default=False)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests running at once.", show_default=False)
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens in one KV block.", show_default=False)
    ] = None,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            help="KV blocks in the pool; on CUDA as many as fit if not given.", show_default=False
        ),
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(
            help="CUDA: share of the card for weights, largest step and KV pool; 0.9 if not "
            "given, the rest stays in reserve. --num-blocks wins.",
            show_default=False,
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Most tokens of one request.", show_default=False)
    ] = None,
    enable_prefix_caching: Annotated[
        bool,
        typer.Option("--enable-prefix-caching", help="Share KV blocks of equal beginnings."),
    ] = False,
    async_scheduling: Annotated[
        str,
        typer.Option(
            help="Launch a step before the tokens of the last one are read back: on, off, or auto "
            "(on CUDA)."
        ),
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_queue: Annotated[int, typer.Option(help="Requests beyond max-num-seqs before 429.")] = 256,
    max_streams: Annotated[int, typer.Option(help="Open streams before 429.")] = 512,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running answers get on SIGTERM.")
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line when ready, nothing else.")
    ] = False,
) -> None:
    """Serve the engine over an OpenAI-compatible HTTP API.

    Paths: /v1/models /v1/completions /v1/chat/completions /health /metrics /trace /openapi.json.
    The metrics have vLLM's names.

    Ctrl-C or SIGTERM: no new requests, running ones finish, then it ends.
    """
    from llmlab.serve.settings import ServeConfig

    knobs = {
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_model_len": max_model_len,
        "enable_prefix_caching": enable_prefix_caching,
    }
    try:
        config = ServeConfig(
            host=host,
            port=port,
            model_name=served_model_name or model_name(model),
            api_key=_read_key(api_key_file),
            max_queue=max_queue,
            max_streams=max_streams,
            drain_timeout=drain_timeout,
        )
        parts = {
            "config": _engine_config(knobs),
            "async_scheduling": _switch("async-scheduling", async_scheduling),
            "gpu_memory_utilization": gpu_memory_utilization,
        }
    except (ValueError, OSError) as error:
        fail(error)
    raise typer.Exit(_run(model, config, device, parts, as_json))


def _run(model: str, config: ServeConfig, device: str, parts: dict[str, Any], as_json: bool) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        with err.status(f"loading {model}"):
            from llmlab.engine import Engine
            from llmlab.engine.profile import choose_device, load_for
            from llmlab.serve.server import serve as run

            engine = Engine(load_for(choose_device(device), model), **parts)
        try:
            return run(engine, config, on_ready=lambda url: _announce(url, config, as_json))
        except OSError as error:
            where = f"{config.host}:{config.port}"
            fail(f"cannot listen on {where}: {error.strerror}; try --port 0")
    except (ValueError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        return 130


def model_name(model: str) -> str:
    """What a model is called in the API: a file's or a folder's own name, else what was given."""
    path = Path(model).expanduser()
    return path.stem if path.suffix == ".gguf" else path.name if path.is_dir() else model


def _announce(url: str, config: ServeConfig, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"base_url": url, "model": config.model_name}), flush=True)
        return
    body = json.dumps({"model": config.model_name, "prompt": "Hello", "max_tokens": 8})
    key = " -H 'Authorization: Bearer ...'" if config.api_key else ""
    name = (config.model_name, "bold")
    out.print(Text.assemble(name, f" on {url}   (Ctrl-C ends it)"), soft_wrap=True)
    out.print("\nTry, in another terminal:")
    for line in (
        f"curl {url}/v1/completions{key} \\",
        "  -H 'Content-Type: application/json' \\",
        f"  -d '{body}'",
        f"llmlab bench serve --base-url {url} --num-prompts 8",
    ):
        out.print(f"  {line}", soft_wrap=True)


def _engine_config(knobs: dict[str, Any]) -> EngineConfig:
    from llmlab.config import EngineConfig

    return EngineConfig(**{name: value for name, value in knobs.items() if value is not None})


def _switch(name: str, value: str) -> bool | None:
    if value not in (known := {"auto": None, "on": True, "off": False}):
        raise ValueError(f"--{name} {value}: must be auto, on or off")
    return known[value]


def _read_key(path: Path | None) -> str | None:
    """The API key from a file, else from the environment. It is never printed."""
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or not lines[0].strip():
        raise ValueError(f"{path}: the first line must be the API key")
    return lines[0].strip()
