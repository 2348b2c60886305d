"""What the sender noted of its run in a trace's meta, in the shape that a reader can rely on.

A trace may come from a file of anybody's, so each of these is empty where what stands there has
another shape. Known are `workload` (see `Workload.to_dict`) and `config` (see `EngineConfig`).
"""

from __future__ import annotations

from typing import Any

from llmlab.trace import Trace


def workload(trace: Trace) -> dict[str, Any]:
    """The workload, as its file would say it."""
    return _mapping(trace.meta.get("workload"))


def arrivals(trace: Trace) -> dict[str, Any]:
    """The arrival process of the workload."""
    return _mapping(workload(trace).get("arrivals"))


def classes(trace: Trace) -> list[dict[str, Any]]:
    """The classes of the workload, in its order."""
    listed = workload(trace).get("classes")
    return [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []


def config(trace: Trace) -> dict[str, Any]:
    """The engine's knobs."""
    return _mapping(trace.meta.get("config"))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
