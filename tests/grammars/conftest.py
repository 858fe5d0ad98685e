import pytest

from pageloom.model_files import locate_model
from pageloom.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(locate_model(""))
