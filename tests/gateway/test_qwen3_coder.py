"""Qwen3-Coder's calls, found by the model's template: shown, streamed with the types of the schema, and taken back."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from gateway.served_model import ServedModel
from pageloom.chat_template import ChatTemplate
from pageloom.parsing.tool_formats import detect_tool_format
from tests.gateway.test_tools import ends
from tests.support.gateway_server import MODEL_NAME, GatewayServer, gateway_server

pytestmark = pytest.mark.asyncio(loop_scope="module")
# What of its template concerns calls.
TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}<function><name>{{ tool.function.name }}</name></function>{% endfor %}
<tool_call>
<function=example_function_name>
<parameter=example_parameter>
value
</parameter>
</function>
</tool_call><|im_end|>
{% endif %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
{{ "\\n<tool_call>\\n<function=" ~ call.function.name ~ ">\\n" -}}
{% for name, value in call.function.arguments|items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
EDIT: Any = {
    "type": "function",
    "function": {
        "name": "edit",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "code": {"type": "string"},
                "line": {"type": "integer"},
                "flags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["path"],
        },
    },
}
CODE = 'if a < b:\n    print("x")\n'
WRITTEN = f"""I edit it.
<tool_call>
<function=edit>
<parameter=path>
10
</parameter>
<parameter=code>
{CODE}
</parameter>
<parameter=line>
3
</parameter>
<parameter=flags>
["a", "b"]
</parameter>
</function>
</tool_call>"""
ARGUMENTS = {"path": "10", "code": CODE, "line": 3, "flags": ["a", "b"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coder(served_model: ServedModel) -> AsyncGenerator[GatewayServer]:
    tool_format = detect_tool_format(TEMPLATE)
    assert tool_format.name == "qwen3_coder"
    model = replace(served_model, chat_template=ChatTemplate(TEMPLATE, {}), tool_format=tool_format)
    async with gateway_server(model) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
async def test_values_have_the_types_of_the_schema(coder: GatewayServer, stream: bool):
    coder.engine.script = ends(coder, WRITTEN)
    fields: Any = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Edit."}], "tools": [EDIT]}
    if stream:
        pieces = []
        async for chunk in await coder.openai.chat.completions.create(**fields, stream=True):
            pieces += [call.function.arguments or "" for call in chunk.choices[0].delta.tool_calls or []]
        assert len([piece for piece in pieces if piece]) > 8, "text comes in pieces"
        assert json.loads("".join(pieces)) == ARGUMENTS
    else:
        (choice,) = (await coder.openai.chat.completions.create(**fields)).choices
        (call,) = choice.message.tool_calls or []
        assert (choice.message.content, choice.finish_reason, call.function.name) == (
            "I edit it.",
            "tool_calls",
            "edit",
        )
        assert json.loads(call.function.arguments) == ARGUMENTS
        said: Any = [*fields["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
        await coder.openai.chat.completions.create(**{**fields, "messages": said})
        asked = coder.engine.requests[-1].prompt_token_ids
        assert WRITTEN in coder.model.tokenizer.decode(asked, skip_special_tokens=False)
