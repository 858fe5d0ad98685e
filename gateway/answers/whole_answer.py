"""A generation -> the whole text of each choice, for answers that are not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.answers.choice import ScoredToken
from gateway.answers.generation import Generation
from gateway.openai.answer_schemas import Finish
from gateway.openai.prompt_logprobs import EchoedToken
from gateway.requests.job import Job
from pageloom.parsing.tool_calls import ToolCallDelta
from pageloom.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallAnswer:
    """Of a custom tool's call `arguments` are its input."""

    id: str
    name: str
    arguments: str
    is_custom: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer:
    text: str
    reasoning: str
    tool_calls: tuple[ToolCallAnswer, ...]
    scored: tuple[ScoredToken, ...]
    finish: Finish
    stop_reason: str | int | None
    timeline: Timeline | None
    token_ids: tuple[int, ...]
    echoed: tuple[EchoedToken, ...]

    @property
    def mean_logprob(self) -> float:
        """Per token."""
        return sum(token.logprobs.logprob for token in self.scored) / max(len(self.scored), 1)


@dataclass(slots=True)
class _Growing:
    pieces: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    finish: Finish = "length"
    stop_reason: str | int | None = None
    timeline: Timeline | None = None
    token_ids: list[int] = field(default_factory=list)
    echoed: tuple[EchoedToken, ...] = ()


async def collect(generation: Generation, job: Job) -> list[ChoiceAnswer]:
    """`n` choices for each prompt, in the order of the prompts: the likeliest first if there were more samples,
    otherwise as the engine numbers them."""
    growing = [_Growing() for _ in range(job.num_choices)]
    while (deltas := await generation.next_deltas()) is not None:
        for delta in deltas:
            choice = growing[delta.choice_index]
            choice.pieces.append(delta.text)
            choice.reasoning.append(delta.reasoning)
            choice.tool_calls.extend(delta.tool_calls)
            choice.scored.extend(delta.scored)
            choice.token_ids.extend(delta.token_ids)
            choice.echoed += delta.echoed
            if delta.finish is not None:
                choice.finish, choice.stop_reason, choice.timeline = delta.finish, delta.stop_reason, delta.timeline
    answers = [
        ChoiceAnswer(
            text="".join(choice.pieces),
            reasoning="".join(choice.reasoning),
            tool_calls=_whole_calls(choice.tool_calls),
            scored=tuple(choice.scored),
            finish=choice.finish,
            stop_reason=choice.stop_reason,
            timeline=choice.timeline,
            token_ids=tuple(choice.token_ids),
            echoed=choice.echoed,
        )
        for choice in growing
    ]
    return answers if job.num_samples == job.n else _likeliest(answers, job)


def _whole_calls(deltas: Sequence[ToolCallDelta]) -> tuple[ToolCallAnswer, ...]:
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        arguments.setdefault(delta.index, []).append(delta.arguments)
    return tuple(
        ToolCallAnswer(
            id=delta.id, name=delta.name, arguments="".join(arguments[delta.index]), is_custom=delta.is_custom
        )
        for delta in deltas
        if delta.id is not None and delta.name is not None
    )


def _likeliest(answers: Sequence[ChoiceAnswer], job: Job) -> list[ChoiceAnswer]:
    chosen: list[ChoiceAnswer] = []
    for first in range(0, len(answers), job.num_samples):
        samples = answers[first : first + job.num_samples]
        chosen += sorted(samples, key=lambda answer: answer.mean_logprob, reverse=True)[: job.n]
    return chosen
