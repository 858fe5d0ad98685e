"""How a served model is found to write calls and thinking, and which of its templates is taken."""

import json
from pathlib import Path

import pytest

from gateway.served_model import load_served_model
from pageloom.errors import InvalidConfig
from pageloom.gguf_file import read_gguf
from pageloom.gguf_tokenizer import build_backend
from pageloom.model_files import locate_model
from tests.support.chat_samples import template_source
from tests.support.gateway_server import gateway_config

TOOLS = [{"type": "function", "function": {"name": "now"}}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Without a template."""
    build_backend(read_gguf(locate_model("").path).metadata).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_from_the_template_or_by_name(folder: Path):
    (folder / "chat_template.jinja").write_text(template_source("qwen3"))
    model = load_served_model(gateway_config(model=str(folder), scheduler_address="x:1"))
    assert model.reasoning_format is not None
    assert (model.tool_format.name, model.reasoning_format.name) == ("hermes", "think")
    named = {"tool_call_parser": "mistral", "reasoning_parser": "none"}
    model = load_served_model(gateway_config(model=str(folder), scheduler_address="x:1", **named))
    assert (model.tool_format.name, model.reasoning_format) == ("mistral", None)
    for setting, flag in (("tool_call_parser", "--tool-call-parser"), ("reasoning_parser", "--reasoning-parser")):
        with pytest.raises(InvalidConfig, match=f"{flag} must be auto"):
            load_served_model(gateway_config(scheduler_address="x:1", **{setting: "hermse"}))


def test_the_template_for_tools_is_taken_with_tools(folder: Path):
    body = "{% for m in messages %}{{ m.content }}{% endfor %}"
    named = [
        {"name": "default", "template": "plain " + body},
        {"name": "tool_use", "template": "<tool_call> {{ tools[0].function.name }} " + body},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    model = load_served_model(gateway_config(model=str(folder), scheduler_address="x:1"))
    for with_tools, start in ((False, "plain "), (True, "<tool_call> now ")):
        template = model.template_for(with_tools)
        assert template is not None
        messages = [{"role": "user", "content": "Hi"}]
        assert template.render(messages, add_generation_prompt=True, tools=TOOLS) == start + "Hi"
    assert model.tool_format.name == "hermes"
    own = load_served_model(gateway_config(model=str(folder), scheduler_address="x:1", chat_template="{{ 'own' }}"))
    assert own.template_for(True) is own.template_for(False) is own.chat_template
