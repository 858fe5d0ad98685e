"""Does one tenant's flood harm another? Shares of service, and the light tenant's time to first token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pageloom.policies import SchedulingPolicy
from pageloom.simulation_config import SimulationConfig
from scheduler_svc.simulation.recorder import Recorder
from scheduler_svc.simulation.report import Distribution
from scheduler_svc.simulation.simulate import Outcome, simulate
from scheduler_svc.simulation.trace import Trace, TraceRequest
from scheduler_svc.simulation.workload import synthetic_trace

LIGHT, HEAVY = "light", "heavy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """ShareGPT-like requests on one GPU for `duration_s`, of which the first `settled_s` fill an empty machine.
    `capacity` is what it serves of them under overload, in requests/s."""

    title: str
    gpu: str
    model: str
    capacity: float
    settled_s: float
    duration_s: float
    max_num_seqs: int


SETTINGS = (
    Setting(
        title="slots bind: Llama-3-8B on H200, 256 slots",
        gpu="h200", model="llama-3-8b", capacity=63.0, settled_s=10.0, duration_s=40.0, max_num_seqs=256,
    ),
    Setting(
        title="KV memory binds: OPT-13B on A100-40GB",
        gpu="a100-40gb", model="opt-13b", capacity=3.0, settled_s=30.0, duration_s=200.0, max_num_seqs=256,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Tokens served while both tenants have a backlog, and Jain's index of them: 1 if equal, 1/2 if one gets all."""

    scheduling_policy: str
    num_light_tokens: int
    num_heavy_tokens: int

    @property
    def jain_index(self) -> float:
        total = self.num_light_tokens + self.num_heavy_tokens
        return total**2 / (2 * (self.num_light_tokens**2 + self.num_heavy_tokens**2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The light tenant's time to first token, with a tenth of the capacity, beside `heavy_rate` of the other's."""

    scheduling_policy: str
    neighbour: str
    heavy_rate: float
    ttft_s: Distribution


def backlogged(setting: Setting, policy: SchedulingPolicy) -> Shares:
    """The light tenant sends 85% of the capacity, more than its half, and the heavy one ten times that."""
    rate = 0.85 * setting.capacity
    outcome = _run(setting, policy, rate, 10 * rate, until_s=setting.duration_s)
    light, heavy = _served(outcome.recorder, setting.settled_s)
    return Shares(scheduling_policy=policy, num_light_tokens=light, num_heavy_tokens=heavy)


def latencies(setting: Setting) -> list[Latency]:
    """Alone, beside a tenant that takes most of what is left, and beside one that sends twenty times as much as it."""
    light_rate = setting.capacity / 10
    cases = (
        (SchedulingPolicy.fair, "none", 0.0),
        (SchedulingPolicy.fair, "within capacity", 0.85 * setting.capacity),
        (SchedulingPolicy.fair, "flood", 2 * setting.capacity),
        (SchedulingPolicy.fcfs, "flood", 2 * setting.capacity),
    )
    return [
        Latency(
            scheduling_policy=policy,
            neighbour=neighbour,
            heavy_rate=heavy_rate,
            ttft_s=_light_ttft(_run(setting, policy, light_rate, heavy_rate)),
        )
        for policy, neighbour, heavy_rate in cases
    ]


def _run(
    setting: Setting, policy: SchedulingPolicy, light_rate: float, heavy_rate: float, until_s: float = math.inf
) -> Outcome:
    config = SimulationConfig(
        trace="",
        gpu=setting.gpu,
        model=setting.model,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=2048,
        scheduling_policy=policy,
        enable_prefix_caching=False,
    )
    rows = _rows(LIGHT, light_rate, setting.duration_s, seed=0) + _rows(HEAVY, heavy_rate, setting.duration_s, seed=1)
    rows.sort(key=lambda row: row.arrival_s)
    return simulate(config, Trace(name="two tenants", requests=tuple(rows)), until_s)


def _rows(tenant: str, rate: float, duration_s: float, seed: int) -> list[TraceRequest]:
    if rate == 0.0:
        return []
    trace = synthetic_trace("sharegpt", num_requests=round(rate * duration_s), request_rate=rate, seed=seed)
    return [request._replace(tenant=tenant) for request in trace.requests]


def _served(recorder: Recorder, settled_s: float) -> tuple[int, int]:
    """Tokens of (light, heavy) from then to the last arrival of the one who sends less long."""
    tenants = list(recorder.tenants)
    ends = [recorder.arrived_s[recorder.tenant_of == i].max() for i in range(len(tenants))]
    samples = [sample for sample in recorder.samples if settled_s <= sample.at_s <= min(ends)]
    first, last = samples[0].tenant_tokens, samples[-1].tenant_tokens
    light, heavy = tenants.index(LIGHT), tenants.index(HEAVY)
    return last[light] - first[light], last[heavy] - first[heavy]


def _light_ttft(outcome: Outcome) -> Distribution:
    tenant = outcome.report.tenants.get(LIGHT)
    ttft_s = outcome.report.ttft_s if tenant is None else tenant.ttft_s
    assert ttft_s is not None
    return ttft_s
