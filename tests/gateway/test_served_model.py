"""What a model folder says of sampling defaults and names."""

import json
from pathlib import Path

import pytest

from gateway.openai.schemas import ChatCompletionRequest, CompletionRequest
from gateway.requests.terms import Terms
from gateway.requests.translate import translate_chat, translate_completion
from gateway.served_model import ServedModel, load_served_model
from pageloom.errors import InvalidConfig, ModelLoadError
from pageloom.gguf_file import read_gguf
from pageloom.gguf_tokenizer import build_backend
from pageloom.model_files import locate_model
from pageloom.sampling_params import SamplingParams
from tests.support.gateway_server import gateway_config
from tests.support.scripted_engine import MODEL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_backend(read_gguf(locate_model("").path).metadata).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    (path / "config.json").write_text("{}")
    return path


def test_generation_config_gives_defaults_and_requests_win(folder: Path):
    values = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_new_tokens": 33, "do_sample": True, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(values))
    model = load_served_model(gateway_config(model=str(folder), scheduler_address="x:1", served_model_names=()))
    messages = [{"role": "user", "content": "x"}]
    asked: dict[str, object] = {"model": model.names[0], "messages": messages}
    default = translate_chat(ChatCompletionRequest.model_validate(asked), Terms(), model, MODEL).prompts[0].sampling
    assert (default.temperature, default.top_p, default.top_k, default.max_tokens) == (0.6, 0.9, 20, 33)
    asked |= {"temperature": 0, "top_p": 1.0, "top_k": 0, "max_tokens": 44}
    explicit = translate_chat(ChatCompletionRequest.model_validate(asked), Terms(), model, MODEL).prompts[0].sampling
    assert (explicit.temperature, explicit.top_p, explicit.top_k, explicit.max_tokens) == (0, 1.0, 0, 44)
    text = CompletionRequest.model_validate({"model": model.names[0], "prompt": "x"})
    assert translate_completion(text, Terms(), model, MODEL).prompts[0].sampling.max_tokens == 16


def test_where_defaults_come_from(folder: Path, tmp_path: Path):
    def load(source: str, model: str = str(folder)) -> ServedModel:
        return load_served_model(gateway_config(model=model, scheduler_address="x:1", generation_config=source))

    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    assert load("auto").defaults_source == "temperature=0.6, top_k=20 (from the model; a request's own values win)"
    nothing = load("vllm")
    assert nothing.defaults == SamplingParams()
    assert nothing.defaults_source == "temperature=1.0, top_p=1.0 (--generation-config vllm)"
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.1}')
    # Also for a model that is one file.
    for model in (str(folder), ""):
        other = load(str(tmp_path), model)
        assert (other.defaults.min_p, other.defaults.temperature) == (0.1, 1.0)
        assert str(tmp_path) in other.defaults_source
    assert load("auto", "").defaults_source == "temperature=1.0, top_p=1.0 (none come with the model)"
    with pytest.raises(
        InvalidConfig, match=r"--generation-config takes auto, vllm or a folder; there is no file .*none"
    ):
        load(str(tmp_path / "none"))


@pytest.mark.parametrize("values", ['{"temperature": -1}', '{"top_p": "high"}', "[]", "{"])
def test_a_wrong_generation_config_is_a_load_error(folder: Path, values: str):
    (folder / "generation_config.json").write_text(values)
    with pytest.raises(ModelLoadError, match="generation_config"):
        load_served_model(gateway_config(model=str(folder), scheduler_address="x:1"))
