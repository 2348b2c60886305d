"""Benchmarks: one a module, each with a `main(argv)`; `python -m llmlab.bench NAME` runs it."""
