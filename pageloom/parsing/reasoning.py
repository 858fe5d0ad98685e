"""What a model thinks before it answers, told apart from the answer, piece by piece. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pageloom.parsing.marker_search import MarkerSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The marks around the thinking. With `implied` the answer begins inside, whatever the prompt ends with."""

    name: str
    begin: str
    end: str
    implied: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must not be dropped from the model's output as special tokens."""
        return (self.begin, self.end)

    def is_open_after(self, prompt: str, *, continuing: bool) -> bool:
        """Whether an answer to this prompt begins inside the thinking: the prompt ends with the mark or, if it is
        the last message that goes on, somewhere behind it."""
        if continuing:
            return prompt.rfind(self.begin) > prompt.rfind(self.end)
        return self.implied or prompt.rstrip().endswith(self.begin)


THINK = ReasoningFormat(name="think", begin="<think>", end="</think>")
DEEPSEEK_R1 = ReasoningFormat(name="deepseek_r1", begin="<think>", end="</think>", implied=True)
GEMMA_THOUGHT = ReasoningFormat(name="gemma", begin="<|channel>thought", end="<channel|>")
COHERE_THINKING = ReasoningFormat(name="cohere", begin="<|START_THINKING|>", end="<|END_THINKING|>")
MISTRAL_THINK = ReasoningFormat(name="mistral", begin="[THINK]", end="[/THINK]")
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    each.name: each for each in (THINK, DEEPSEEK_R1, GEMMA_THOUGHT, COHERE_THINKING, MISTRAL_THINK)
}


def detect_reasoning_format(template_source: str) -> ReasoningFormat | None:
    """The way that a chat template shows thinking; None if it does not."""
    for reasoning_format in (GEMMA_THOUGHT, COHERE_THINKING, MISTRAL_THINK, THINK):
        if reasoning_format.end in template_source and reasoning_format.begin in template_source:
            return reasoning_format
    # Templates that only drop the thinking of earlier turns name its end alone.
    return THINK if THINK.end in template_source else None


class ReasoningSplitter:
    """Thinking comes first or not at all. White space at its ends, and between it and the answer, is dropped."""

    def __init__(self, reasoning_format: ReasoningFormat, *, is_open: bool) -> None:
        self._begin = reasoning_format.begin
        self._search = MarkerSearch((reasoning_format.end,))
        self._held: list[str] = []
        self._partial = ""
        self._reasoning: list[str] = []
        self._answer: list[str] = []
        self._has_begun = False
        self._step: Callable[[str], str] = self._inside if is_open else self._before

    @property
    def is_inside(self) -> bool:
        return self._step == self._inside

    def push(self, text: str) -> tuple[str, str]:
        """Thinking, and text that follows it."""
        while text:
            text = self._step(text)
        return self._take()

    def finish(self) -> tuple[str, str]:
        """What was held back, once the text has ended."""
        if self.is_inside:
            self._think(self._search.finish())
        elif self._step == self._before:
            self._answer += [*self._held, self._partial]
        return self._take()

    def _take(self) -> tuple[str, str]:
        reasoning, self._reasoning = "".join(self._reasoning), []
        answer, self._answer = "".join(self._answer), []
        return reasoning, answer

    def _before(self, text: str) -> str:
        """A text that begins as the mark does, after any white space."""
        if not self._partial:
            stripped = text.lstrip()
            self._held.append(text[: len(text) - len(stripped)])
            text = stripped
        text = self._partial + text
        if text.startswith(self._begin):
            self._held, self._step = [], self._inside
            return text[len(self._begin) :]
        if self._begin.startswith(text):
            self._partial = text
            return ""
        self._answer += self._held
        self._step = self._after
        return text

    def _inside(self, text: str) -> str:
        thought, marker, rest = self._search.push(text)
        self._think(thought)
        if marker is not None:
            self._step = self._between
        return rest

    def _think(self, text: str) -> None:
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        thought = text.rstrip()
        if thought:
            self._reasoning += [*self._held, thought]
            self._held = []
        self._held.append(text[len(thought) :])

    def _between(self, text: str) -> str:
        stripped = text.lstrip()
        if stripped:
            self._step = self._after
        return stripped

    def _after(self, text: str) -> str:
        self._answer.append(text)
        return ""
