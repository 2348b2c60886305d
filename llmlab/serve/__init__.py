"""The engine behind an OpenAI-compatible HTTP API, in one process."""
