"""Does a timeline make sense? Waits and runs take turns without gap or overlap, from the arrival to the end."""

from __future__ import annotations

import itertools

from pageloom.timeline import Run, Timeline, Wait

# The core's own bound; a longer life is told in part.
MAX_ENTRIES = 64


def check_timeline(timeline: Timeline, now_s: float) -> None:
    """Raises AssertionError unless this can be the life of one choice up to `now_s`."""
    waits, runs = timeline.waits, timeline.runs
    assert waits, "nobody is admitted on arrival"
    if max(len(waits), len(runs)) >= MAX_ENTRIES:
        return
    stretches: list[Wait | Run] = sorted((*waits, *runs), key=lambda stretch: stretch.start_s)
    assert stretches[0].start_s == 0
    for before, after in itertools.pairwise(stretches):
        assert before.end_s is not None, f"{before} has no end"
        assert before.start_s <= before.end_s
        assert before.end_s == after.start_s, f"a gap or overlap between {before} and {after}"
        assert isinstance(before, Wait) or isinstance(after, Wait), "two runs without a wait between"
    last = stretches[-1]
    assert last.end_s == timeline.finished_s, "the end is another than that of the last wait or run"
    assert last.start_s <= (now_s if last.end_s is None else last.end_s) <= now_s
    for run in runs:
        assert run.end_s is not None or run is runs[-1]
        assert run.end_s is None or run.num_steps + run.num_held_steps >= 0
        assert not (run.preempted_by and run.worker_lost)
    for wait in waits:
        assert wait.num_ahead >= len(wait.behind_request_ids) or wait.num_ahead == 0
    if timeline.first_token_s is not None:
        began = [run for run in runs if run.start_s <= timeline.first_token_s]
        assert began, "a token before the first run"
        assert timeline.first_token_s <= (began[-1].end_s or now_s) or _was_preempted(began[-1])


def _was_preempted(stretch: Wait | Run) -> bool:
    return isinstance(stretch, Run) and stretch.preempted_by != ""
