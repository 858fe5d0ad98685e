"""Chat templates: equal to transformers' apply_chat_template, and harmless."""

import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pageloom import template_sandbox
from pageloom.chat_template import ChatTemplate, load_chat_template
from pageloom.errors import InvalidConfig, InvalidRequest, ModelLoadError
from pageloom.model_files import locate_model
from pageloom.tokenizer import load_tokenizer
from tests.support.tokenizer_reference import reference_tokenizer

USER = {"role": "user", "content": "Hi <b>é</b>"}
CHATS = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "Hello! "}, {"role": "user", "content": "  And?\n"}],
    [{"role": "user", "content": ""}],
]
# Each uses what real templates use.
TEMPLATES = [
    """{% for message in messages %}
  {% if message.role == 'user' %}
U: {{ message.content | trim }}
  {% endif %}
{% endfor %}""",
    """{{ bos_token }}{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ '!' if loop.last }}{{ m | tojson }}
{% endfor %}""",
    """{{ messages | tojson(indent=2) }}{% set ns = namespace(n=0) %}
{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}{{ ns.n }}""",
    """{% for m in messages if m.role != 'system' %}
{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role ~ ': ' ~ m.content }}{% else %}none{% endfor %}""",
    """{% macro show(m) %}[{{ m.role.upper() }}|{{ m['content'].split(' ')[0] }}]{% endmacro %}
{% for m in messages %}{{ show(m) }}{% endfor %}""",
    """{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}
{% if tools is none %}no tools{% endif %}""",
    "{%- for k, v in messages[0].items() -%}{{ k + '=' + v }};{%- endfor -%}{{ 'ab' * 3 }}{{ 7 % 4 }}{{ 2 ** 5 }}",
    """{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}
{% if add_generation_prompt %}GO{% endif %}""",
]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_default_model_equals_transformers(chat: list[dict[str, str]], add_generation_prompt: bool):
    template = load_chat_template(load_tokenizer(locate_model("")), None)
    assert template is not None
    rendered = template.render(chat, add_generation_prompt=add_generation_prompt)
    assert rendered == reference_tokenizer().apply_chat_template(
        chat, tokenize=False, add_generation_prompt=add_generation_prompt
    )


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_features_equal_transformers(source: str, chat: list[dict[str, str]]):
    ours = ChatTemplate(source, {"bos_token": "<s>"}).render(
        chat, add_generation_prompt=True, variables={"enable_thinking": False}
    )
    theirs = render_jinja_template(
        [chat], chat_template=source, add_generation_prompt=True, bos_token="<s>", enable_thinking=False
    )
    assert ours == theirs[0][0]


@pytest.mark.parametrize("source", ["{% for m in messages %}<{{ m.content }}>{% endfor %}", TEMPLATES[0]])
def test_continue_final_message_equals_transformers(source: str):
    chat = [USER, {"role": "user", "content": "The answer is "}]
    ours = ChatTemplate(source, {}).render(chat, add_generation_prompt=False, continue_final_message=True)
    theirs = render_jinja_template([chat], chat_template=source, continue_final_message=True)
    assert ours == theirs[0][0]


def test_strftime_now():
    assert len(ChatTemplate("{{ strftime_now('%Y') }}", {}).render([USER], add_generation_prompt=True)) == 4


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe|append"),
        ("{{ nothing.here }}", "undefined"),
        ("{{ 'a' + 1 }}", "str"),
        ("{% for i in range(10**9) %}x{% endfor %}", "1000000000"),
        ("{{ 'x' * 10**9 }}", "1000000000"),
        ("{{ 10**9 * 'x' }}", "1000000000"),
        ("{{ 'x'.ljust(10**9) }}", "1000000000"),
        ("{{ 10 ** 10000 }}", "of something"),
        (
            "{% set s = namespace(v='x') %}{% for i in range(60) %}{% set s.v = s.v ~ s.v %}{% endfor %}",
            "builds a text",
        ),
        (
            "{% set s = namespace(v='x') %}{% for i in range(60) %}{% set s.v = s.v + s.v %}{% endfor %}",
            "builds a text",
        ),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than"),
        ("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "runs for more than"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
            "runs for more than",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_what_a_template_may_not(monkeypatch: pytest.MonkeyPatch, source: str, reason: str):
    monkeypatch.setattr(template_sandbox, "MAX_RENDER_S", 0.2)
    start = time.monotonic()
    with pytest.raises(InvalidRequest, match=reason) as caught:
        ChatTemplate(source, {}).render([USER], add_generation_prompt=True)
    assert caught.value.param == "messages"
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize("name", ["messages", "tokenize", "chat_template", "tools", "bos_token", "raise_exception"])
def test_variables_cannot_shadow_what_the_server_sets(name: str):
    template = ChatTemplate("{{ messages }}", {"bos_token": "<s>"})
    with pytest.raises(InvalidRequest, match=name) as caught:
        template.render([USER], add_generation_prompt=True, variables={name: True})
    assert caught.value.param == "chat_template_kwargs"


def test_a_template_that_drops_the_final_message_cannot_continue_it():
    with pytest.raises(InvalidRequest, match="drops the final message"):
        ChatTemplate("x", {}).render([USER], add_generation_prompt=False, continue_final_message=True)


def test_invalid_template_is_a_load_error():
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("ok\n{% for %}", {})


def test_operator_template_is_a_file_or_text(tmp_path):
    tokenizer = load_tokenizer(locate_model(""))
    path = tmp_path / "template.jinja"
    path.write_text("file {{ messages[0].content }}")
    for override, expected in ((str(path), "file Hi <b>é</b>"), ("text {{ 1 + 1 }}", "text 2")):
        template = load_chat_template(tokenizer, override)
        assert template is not None
        assert template.render([USER], add_generation_prompt=True) == expected
    with pytest.raises(InvalidConfig, match="--chat-template"):
        load_chat_template(tokenizer, "no-such-file")
