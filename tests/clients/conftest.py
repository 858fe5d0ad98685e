"""The server that the clients speak to, and what they need beside its URL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Serving, serving
from tests.support.tokenizer_reference import reference_tokenizer


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's tokenizer, as clients that count tokens read it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    reference_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_name() -> str:
    return "SmolLM2-135M-Instruct"
