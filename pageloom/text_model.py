"""What one has to know of a model to turn texts into its tokens and back: read once, from its files."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.chat_template import ChatTemplate, load_chat_template, load_tool_use_template
from pageloom.errors import InvalidConfig
from pageloom.form_limits import DEFAULT_FORM_LIMITS, FormLimits
from pageloom.model_files import ModelFiles
from pageloom.parsing.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from pageloom.parsing.tool_formats import GENERIC_JSON, TOOL_FORMATS, ToolFormat, detect_tool_format
from pageloom.sampling_defaults import load_sampling_defaults
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextModel:
    """`defaults` hold for what a request leaves out; `defaults_source` says for people where they come from.
    `tool_format` and `reasoning_format` are how it writes calls and thinking; the latter is None if it does not
    think. `form_limits` bound what forms of its answers may be asked for."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    defaults: SamplingParams
    defaults_source: str
    tool_format: ToolFormat = GENERIC_JSON
    reasoning_format: ReasoningFormat | None = None
    tool_use_template: ChatTemplate | None = None
    form_limits: FormLimits = DEFAULT_FORM_LIMITS

    def template_for(self, with_tools: bool) -> ChatTemplate | None:
        """Some models have a template of its own for requests with tools."""
        return self.chat_template if not with_tools else self.tool_use_template or self.chat_template


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What an operator may say of it: a template instead of the model's, where sampling defaults come from, and names
    of parsers."""

    chat_template: str | None
    generation_config: str
    tool_call_parser: str
    reasoning_parser: str


def load_text_model(files: ModelFiles, options: TextOptions) -> TextModel:
    """Reads tokenizer, template and defaults. Raises ModelLoadError or InvalidConfig."""
    tokenizer = load_tokenizer(files)
    defaults, defaults_source = load_sampling_defaults(files, options.generation_config)
    template = load_chat_template(tokenizer, options.chat_template)
    tool_use_template = load_tool_use_template(tokenizer, options.chat_template)
    calling = tool_use_template or template
    source = "" if calling is None else calling.source
    return TextModel(
        tokenizer=tokenizer,
        chat_template=template,
        defaults=defaults,
        defaults_source=defaults_source,
        tool_format=_tool_format(options.tool_call_parser, source),
        tool_use_template=tool_use_template,
        reasoning_format=_reasoning_format(options.reasoning_parser, source),
    )


def _tool_format(name: str, template_source: str) -> ToolFormat:
    if name == "auto":
        return detect_tool_format(template_source)
    if name not in TOOL_FORMATS:
        raise InvalidConfig(f"--tool-call-parser must be auto or one of {', '.join(TOOL_FORMATS)}, not {name!r}")
    return TOOL_FORMATS[name]


def _reasoning_format(name: str, template_source: str) -> ReasoningFormat | None:
    if name == "auto":
        return detect_reasoning_format(template_source)
    if name == "none":
        return None
    if name not in REASONING_FORMATS:
        known = ", ".join(REASONING_FORMATS)
        raise InvalidConfig(f"--reasoning-parser must be auto, none or one of {known}, not {name!r}")
    return REASONING_FORMATS[name]
