"""One simulation from its settings to its report."""

from __future__ import annotations

import gc
import hashlib
import math
from dataclasses import dataclass

import numpy as np

from pageloom.errors import InvalidConfig
from pageloom.plan import CacheInfo, ModelInfo, WorkerHello
from pageloom.policies import Placement, SchedulingPolicy
from pageloom.requests import GenerateRequest
from pageloom.roofline import Roofline, roofline, simulated_cache
from pageloom.simulated_tokens import SIMULATED_EOS_TOKEN_ID
from pageloom.simulation_config import Allocator, KvPolicy, SimulationConfig
from scheduler_svc.core import Limits, Scheduler
from scheduler_svc.simulation.address_space import Buddy, FirstFit
from scheduler_svc.simulation.contiguous import ContiguousScheduler, Reserve
from scheduler_svc.simulation.device import SimulatedDevice
from scheduler_svc.simulation.event_loop import EventLoop, SteppedScheduler
from scheduler_svc.simulation.recorder import Recorder
from scheduler_svc.simulation.report import Report, summarize
from scheduler_svc.simulation.trace import MAX_SPAN_S, Trace
from scheduler_svc.simulation.workload import (
    PromptPool,
    assign_tenants,
    generate_requests,
    load_trace,
    scale_lengths,
    scale_time,
)

_NUM_SAMPLES = 5_000
_SAMPLE_INTERVALS_S = (0.01, 1.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation leaves: its summary, and everything that was recorded."""

    report: Report
    recorder: Recorder


def prepare_trace(config: SimulationConfig) -> Trace:
    """The trace that `config` names, scaled as it says. Raises InvalidConfig, also if it lasts too long."""
    trace = load_trace(
        config.trace, num_requests=config.num_requests, request_rate=config.request_rate, seed=config.seed
    )
    if config.time_scale is not None:
        trace = scale_time(trace, config.time_scale)
    # Written so that NaN fails too.
    if not trace.span_s <= MAX_SPAN_S:
        raise InvalidConfig(
            f"the requests of {trace.name} come over {trace.span_s:g} s; at most {MAX_SPAN_S:g} s are run"
        )
    if config.length_scale != 1.0:
        trace = scale_lengths(trace, config.length_scale)
    weights = config.tenant_weights()
    return assign_tenants(trace, weights, config.seed) if weights else trace


def simulate(config: SimulationConfig, trace: Trace, until_s: float = math.inf) -> Outcome:
    """Runs `trace`, as prepared, to its end or until then. Equal arguments give equal outcomes, but for
    `scheduler_times`.

    Raises InvalidConfig, or EngineError if the scheduler leaves requests waiting for ever.
    """
    timer = roofline(config.gpu, config.model, config.tensor_parallel_size)
    cache = simulated_cache(
        timer,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        gpu_memory_utilization=config.gpu_memory_utilization,
    )
    model = _model_info(config, timer, cache)
    output_lens = np.array([request.num_output_tokens for request in trace.requests], np.int64)
    contiguous = config.kv_policy != KvPolicy.paged
    scheduler: SteppedScheduler
    if contiguous:
        baseline = _contiguous_scheduler(config, model, cache, output_lens.tolist())
        scheduler, num_fragmented = baseline, baseline.num_fragmented_tokens
    else:
        scheduler, num_fragmented = _core(config, model, cache, len(trace.requests)), lambda: 0
    devices = {
        worker_id: SimulatedDevice(
            timer,
            output_lens,
            max_num_seqs=config.max_num_seqs,
            block_size=1 if contiguous else cache.block_size,
            vocab_size=model.vocab_size,
        )
        for worker_id in _worker_ids(config)
    }
    loop = EventLoop(
        scheduler,
        devices,
        max_num_steps_in_flight=1 if contiguous else config.max_num_steps_in_flight,
        hop_latency_s=config.hop_latency_s,
    )
    shortest_s, longest_s = _SAMPLE_INTERVALS_S
    recorder = Recorder(
        trace,
        sample_interval_s=min(max(trace.span_s / _NUM_SAMPLES, shortest_s), longest_s),
        stats=scheduler.stats,
        num_unused=lambda: loop.num_unused_tokens,
        num_fragmented=num_fragmented,
    )
    pool = PromptPool(trace, model.vocab_size)
    requests = generate_requests(trace, pool, max_tokens=config.max_tokens, max_model_len=model.max_model_len)
    # The trace and the pool live to the end; the collector need not look at them again and again.
    gc.collect()
    gc.freeze()
    try:
        end_s = loop.run(requests, recorder, until_s)
    finally:
        gc.unfreeze()
    return Outcome(summarize(recorder, scheduler.stats(), end_s - trace.requests[0].arrival_s), recorder)


def _worker_ids(config: SimulationConfig) -> list[str]:
    return [f"worker-{i}" for i in range(config.num_workers)]


def _model_info(config: SimulationConfig, timer: Roofline, cache: CacheInfo) -> ModelInfo:
    # A context longer than the model's is allowed: it is about memory and time, not about what is said.
    max_model_len = config.max_model_len or timer.model.max_model_len
    return ModelInfo(
        name=timer.model.name,
        digest=hashlib.sha256(timer.name.encode()).hexdigest(),
        architecture="simulated",
        vocab_size=timer.model.vocab_size,
        max_model_len=min(max_model_len, cache.num_blocks * cache.block_size),
        eos_token_ids=(SIMULATED_EOS_TOKEN_ID,),
        dtype="bfloat16",
        weights_bytes=timer.model.weights_bytes,
        hidden_size=timer.model.hidden_size,
    )


def _core(config: SimulationConfig, model: ModelInfo, cache: CacheInfo, num_requests: int) -> Scheduler:
    core = Scheduler(
        Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_queued_seqs=num_requests + 1,
            enable_prefix_caching=config.enable_prefix_caching,
            max_num_steps_in_flight=config.max_num_steps_in_flight,
            scheduling_policy=SchedulingPolicy(config.scheduling_policy),
            placement=Placement(config.placement),
        )
    )
    for epoch, worker_id in enumerate(_worker_ids(config), 1):
        hello = WorkerHello(
            worker_id=worker_id,
            boot_id=worker_id,
            model=model,
            cache=cache,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        core.attach(hello, epoch, now=0.0)
    return core


def _contiguous_scheduler(
    config: SimulationConfig, model: ModelInfo, cache: CacheInfo, output_lens: list[int]
) -> ContiguousScheduler:
    num_tokens = cache.num_blocks * cache.block_size
    return ContiguousScheduler(
        _worker_ids(config)[0],
        Buddy(num_tokens) if config.allocator == Allocator.buddy else FirstFit(num_tokens),
        _reserve(KvPolicy(config.kv_policy), output_lens, model.max_model_len),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=model.max_model_len,
    )


def _reserve(policy: KvPolicy, output_lens: list[int], max_model_len: int) -> Reserve:
    """How many tokens a request of the simulation is given room for."""

    def reserve(request: GenerateRequest) -> int:
        assert request.sampling.seed is not None
        assert request.sampling.max_tokens is not None
        output_len = output_lens[request.sampling.seed]
        room = {
            KvPolicy.max_length: max_model_len,
            KvPolicy.reserve: len(request.prompt_token_ids) + request.sampling.max_tokens,
            KvPolicy.pow2: len(request.prompt_token_ids) + (1 << (output_len - 1).bit_length()),
            KvPolicy.oracle: len(request.prompt_token_ids) + output_len,
        }
        return min(room[policy], max_model_len)

    return reserve
