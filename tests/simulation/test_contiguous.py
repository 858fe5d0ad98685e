"""The contiguous baselines in whole simulations: who runs, who waits, what is wasted."""

import pytest

from pageloom.simulation_config import SimulationConfig
from scheduler_svc.simulation.report import Report
from scheduler_svc.simulation.simulate import simulate
from scheduler_svc.simulation.trace import Trace, TraceRequest

PROMPT, OUTPUT = 100, 50


def run(
    kv_policy: str,
    *,
    rows: tuple[TraceRequest, ...] = (TraceRequest(0.0, PROMPT, OUTPUT),) * 12,
    num_tokens: int = 4096,
    allocator: str = "first-fit",
) -> Report:
    config = SimulationConfig(
        trace="", gpu="a100-40gb", model="opt-13b", kv_policy=kv_policy, allocator=allocator,
        num_blocks=num_tokens // 16, block_size=16, max_model_len=1024, max_tokens=500,
    )  # fmt: skip
    return simulate(config, Trace(name="test", requests=rows)).report


@pytest.mark.parametrize(
    ("kv_policy", "reserved"),
    [("max-length", 1024), ("reserve", PROMPT + 500), ("pow2", PROMPT + 64), ("oracle", PROMPT + OUTPUT)],
)
def test_as_many_run_as_reservations_fit(kv_policy: str, reserved: int):
    report = run(kv_policy)
    assert report.num_finished == 12
    assert report.peak_running == min(12, 4096 // reserved)
    assert report.mean_seqs_in_step <= report.peak_running
    # A sequence holds its prompt and, on average, half of its output, but nothing while its prompt is computed.
    while_decoding = 1 - (PROMPT + OUTPUT / 2) / reserved
    assert while_decoding - 0.01 <= report.memory.waste <= while_decoding + 0.12


def test_the_buddy_allocator_gives_powers_of_two():
    assert run("oracle", allocator="buddy").peak_running == 12
    assert run("oracle", allocator="buddy", num_tokens=2048).peak_running == 2048 // 256
    assert run("oracle", num_tokens=2048).peak_running == 12


def test_who_waits_for_memory_blocks_those_behind():
    rows = (TraceRequest(0.0, 900, 100), TraceRequest(0.1, 900, 100), TraceRequest(0.2, 16, 4))
    small = run("oracle", rows=rows, num_tokens=1504)
    alone = run("oracle", rows=(rows[0], rows[2]), num_tokens=1504)
    assert small.num_finished == 3
    assert small.peak_running <= 2
    assert alone.ttft_s is not None
    assert small.ttft_s is not None
    assert small.ttft_s.p99 > 10 * alone.ttft_s.p99


def test_what_never_fits_is_refused():
    report = run("max-length", rows=(TraceRequest(0.0, 2000, 5), TraceRequest(0.0, 10, 5)))
    assert (report.num_refused, report.num_finished) == (1, 1)


def test_tokens_come_one_at_a_time_and_all_of_them():
    report = run("oracle", rows=(TraceRequest(0.0, PROMPT, OUTPUT),))
    assert report.num_steps == OUTPUT
    assert report.output_tokens_per_s * report.duration_s == pytest.approx(OUTPUT)
    assert report.itl_s is not None
    assert report.e2e_s is not None
    assert report.ttft_s is not None
    assert report.e2e_s.mean == pytest.approx(report.ttft_s.mean + (OUTPUT - 1) * report.itl_s.mean)
    assert report.normalised_s is not None
    assert report.normalised_s.mean == pytest.approx(report.e2e_s.mean / OUTPUT)
