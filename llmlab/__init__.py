"""llmlab: learn how an LLM server spends its time, on an engine small enough to read.

The folder list is a request's way: config, trace, sched, engine, kernels, perf, sim, measure,
serve, check, viz, cli. Importing the package itself stays light: no torch, no plotly.
"""

__version__ = "0.1.0"
