"""The server's OpenAPI 3.1 page, made from the request models themselves."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from llmlab import __version__
from llmlab.serve.protocol import ChatRequest, CompletionRequest

Json = dict[str, Any]
REF = "#/components/schemas/{model}"

ERRORS = {
    400: "malformed JSON, a wrong type, an unknown field, or values that cannot run",
    401: "wrong or missing API key",
    403: "the Host header is not this machine's",
    404: "no such model",
    405: "the path knows no such method",
    408: "the request took too long to arrive",
    413: "the body is too large",
    415: "the body is not application/json",
    429: "too many requests; see Retry-After",
    500: "internal error",
    503: "the server is closing, its engine has stopped, or the request did not fit in memory",
}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(model_name: str) -> Json:
    """The page as plain JSON; `model_name` is the only model there is."""
    _, schemas = models_json_schema(
        [(CompletionRequest, "validation"), (ChatRequest, "validation")], ref_template=REF
    )
    only = {"type": "string", "enum": [model_name]}
    for body in ("CompletionRequest", "ChatRequest"):
        schemas["$defs"][body]["properties"]["model"] = only
    name = {"name": "model", "in": "path", "required": True, "schema": only}
    return {
        "openapi": "3.1.0",
        "info": {"title": "llmlab", "version": __version__},
        "paths": {
            "/v1/models": {"get": _get("models", "The one model here.")},
            "/v1/models/{model}": {"get": {**_get("model", "One model."), "parameters": [name]}},
            "/v1/completions": {"post": _post("completions", "Continue a text.", "Completion")},
            "/v1/chat/completions": {"post": _post("chat", "Answer a conversation.", "Chat")},
            "/health": {"get": _get("health", "Whether requests can be served.")},
            "/metrics": {"get": _get("metrics", "Counters for Prometheus.", "text/plain")},
            "/trace": {"get": _get("trace", "Requests and steps so far.", "application/x-ndjson")},
            "/openapi.json": {"get": _get("openapi", "This page.")},
        },
        "components": {
            "schemas": {**schemas["$defs"], "Error": ERROR_SCHEMA},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _get(operation: str, summary: str, media: str = "application/json") -> Json:
    schema = {} if media == "application/json" else {"type": "string"}
    return {
        "operationId": operation,
        "summary": summary,
        "responses": {"200": {"description": "ok", "content": {media: {"schema": schema}}}}
        | _errors(),
    }


def _post(operation: str, summary: str, body: str) -> Json:
    answer = {
        "application/json": {"schema": {"type": "object"}},
        "text/event-stream": {"schema": {"type": "string"}},
    }
    schema = {"$ref": REF.format(model=f"{body}Request")}
    return {
        "operationId": operation,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "the answer, or its stream", "content": answer}}
        | _errors(),
    }


def _errors() -> Json:
    content = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    return {
        str(status): {"description": text, "content": content} for status, text in ERRORS.items()
    }
