"""A generation -> the whole text of each choice, for answers that are not streamed."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.choice import Finish, ScoredToken
from gateway.generation import Generation
from gateway.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAnswer:
    text: str
    scored: tuple[ScoredToken, ...]
    finish: Finish
    stop_reason: str | int | None


@dataclass(slots=True)
class _Growing:
    pieces: list[str] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    finish: Finish = "length"
    stop_reason: str | int | None = None


async def collect(generation: Generation, job: Job) -> list[ChoiceAnswer]:
    """The choices in the order of their index."""
    growing = [_Growing() for _ in range(job.num_choices)]
    while (deltas := await generation.next_deltas()) is not None:
        for delta in deltas:
            choice = growing[delta.index]
            choice.pieces.append(delta.text)
            choice.scored.extend(delta.scored)
            if delta.finish is not None:
                choice.finish, choice.stop_reason = delta.finish, delta.stop_reason
    return [
        ChoiceAnswer(
            text="".join(choice.pieces),
            scored=tuple(choice.scored),
            finish=choice.finish,
            stop_reason=choice.stop_reason,
        )
        for choice in growing
    ]
