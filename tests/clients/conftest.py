"""The server that the clients speak to, and what they need beside its URL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pageloom.model_files import locate_model
from tests.support.serving import Serving, serving
from tests.support.tokenizer_reference import reference_tokenizer

TASKS = Path(__file__).parent / "lm_eval_tasks"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="session")
def client_arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What clients that count tokens or compute for themselves read."""
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    reference_tokenizer().save_pretrained(tokenizer)
    return {"tokenizer": tokenizer, "weights": locate_model("").path, "tasks": TASKS}


@pytest.fixture(scope="session")
def model_name() -> str:
    return "SmolLM2-135M-Instruct"
