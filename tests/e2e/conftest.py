"""One real stack with the default model for all tests that only read from it."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.support.serving import Serving, serving


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="module")
def http(stack: Serving) -> Iterator[httpx.Client]:
    """One for many requests: each makes a TLS context, which costs more than a request."""
    with httpx.Client(base_url=stack.url, timeout=60) as connected:
        yield connected


@pytest.fixture(scope="session")
def model_name() -> str:
    return "SmolLM2-135M-Instruct"
