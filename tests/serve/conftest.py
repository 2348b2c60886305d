"""A server on the fake engine, shared where a test does not need one of its own."""

from __future__ import annotations

import httpx
import pytest

from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig
from tests.serve.fake import FakeEngine


@pytest.fixture(scope="module")
def engine():
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine):
    with running(engine, ServeConfig(port=0, model_name="fake")) as base_url:
        yield base_url


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=10) as client:
        yield client
