"""What a worker counts of its steps."""

from prometheus_client import CollectorRegistry, generate_latest

from pageloom.plan import CacheInfo, Failure, StepResult
from tests.support.paper_model import PAPER_MODEL
from tests.support.serving import metric
from worker_svc.metrics import WorkerMetrics
from worker_svc.step_thread import StepTimes


def test_failures_of_grammars_are_counted_apart():
    registry = CollectorRegistry()
    metrics = WorkerMetrics(PAPER_MODEL, CacheInfo(block_size=16, num_blocks=2, kv_bytes=1), registry)
    failures = {0: Failure("too many states", "grammar"), 1: Failure("no numbers"), 2: Failure("too slow", "grammar")}
    metrics.observe_step(
        StepResult(epoch=1, step=1, failures=failures), StepTimes(step_s=0.1, idle_s=None, plan_wait_s=None)
    )
    text = generate_latest(registry).decode()
    assert metric(text, "pageloom_worker_failed_rows_total") == 3
    assert metric(text, "pageloom_worker_grammar_failures_total") == 2
