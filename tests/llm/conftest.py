"""One engine with the default model for all tests that leave it as they found it."""

from collections.abc import Iterator

import pytest

from pageloom import LLM


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    # A queue that is shorter than what `generate` would keep at the engine.
    with LLM(max_num_seqs=16, max_num_queued_seqs=24, max_model_len=1024, num_gpu_blocks_override=512) as running:
        yield running


@pytest.fixture(scope="session")
def address(llm: LLM) -> str:
    """Of its scheduler."""
    stack = llm._engine.stack
    assert stack is not None
    return stack.scheduler_address
