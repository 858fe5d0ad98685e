"""A generation -> the whole text of each choice, for answers that are not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.choice import Finish, ScoredToken
from gateway.generation import Generation
from gateway.job import Job
from pageloom.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer:
    text: str
    scored: tuple[ScoredToken, ...]
    finish: Finish
    stop_reason: str | int | None
    timeline: Timeline | None
    token_ids: tuple[int, ...]

    @property
    def mean_logprob(self) -> float:
        """Per token."""
        return sum(token.logprobs.logprob for token in self.scored) / max(len(self.scored), 1)


@dataclass(slots=True)
class _Growing:
    pieces: list[str] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    finish: Finish = "length"
    stop_reason: str | int | None = None
    timeline: Timeline | None = None
    token_ids: list[int] = field(default_factory=list)


async def collect(generation: Generation, job: Job) -> list[ChoiceAnswer]:
    """`n` choices for each prompt, in the order of the prompts: the likeliest first if there were more samples,
    otherwise as the engine numbers them."""
    growing = [_Growing() for _ in range(job.num_choices)]
    while (deltas := await generation.next_deltas()) is not None:
        for delta in deltas:
            choice = growing[delta.index]
            choice.pieces.append(delta.text)
            choice.scored.extend(delta.scored)
            choice.token_ids.extend(delta.token_ids)
            if delta.finish is not None:
                choice.finish, choice.stop_reason, choice.timeline = delta.finish, delta.stop_reason, delta.timeline
    answers = [
        ChoiceAnswer(
            text="".join(choice.pieces),
            scored=tuple(choice.scored),
            finish=choice.finish,
            stop_reason=choice.stop_reason,
            timeline=choice.timeline,
            token_ids=tuple(choice.token_ids),
        )
        for choice in growing
    ]
    return answers if job.num_samples == job.n else _likeliest(answers, job)


def _likeliest(answers: Sequence[ChoiceAnswer], job: Job) -> list[ChoiceAnswer]:
    chosen: list[ChoiceAnswer] = []
    for first in range(0, len(answers), job.num_samples):
        samples = answers[first : first + job.num_samples]
        chosen += sorted(samples, key=lambda answer: answer.mean_logprob, reverse=True)[: job.n]
    return chosen
