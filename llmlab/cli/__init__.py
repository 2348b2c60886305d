"""The `llmlab` command: one file a command group, listed in `main`."""
