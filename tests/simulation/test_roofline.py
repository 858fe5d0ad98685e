"""The roofline against figures worked out elsewhere, and its errors."""

import pytest

from pageloom.errors import InvalidConfig
from pageloom.hardware_profiles import GPUS, MODELS
from pageloom.roofline import StepShape, parse_profile, roofline


def decodes(num_seqs: int, context: int) -> StepShape:
    return StepShape(num_seqs, num_seqs, num_seqs * context, 0, 0)


def prefill(num_tokens: int) -> StepShape:
    return StepShape(num_tokens, 1, 0, num_tokens, num_tokens * (num_tokens + 1) // 2)


@pytest.mark.parametrize(
    ("model", "billion_params", "kv_bytes_per_token"),
    [
        ("llama-3-8b", 8.03, 131_072),
        ("llama-3-70b", 70.6, 327_680),
        ("qwen2.5-7b", 7.62, 57_344),
        ("mistral-7b", 7.25, 131_072),
        ("opt-13b", 12.9, 819_200),
        ("opt-66b", 65.7, 2_359_296),
        ("opt-175b", 175.0, 4_718_592),
        ("smollm2-135m", 0.1345, 23_040),
    ],
)
def test_models_have_their_published_sizes(model: str, billion_params: float, kv_bytes_per_token: int):
    profile = MODELS[model]
    assert profile.weights_bytes / 2e9 == pytest.approx(billion_params, rel=0.005)
    assert profile.kv_bytes_per_token == kv_bytes_per_token


@pytest.mark.parametrize(
    ("shape", "milliseconds"),
    [(decodes(1, 512), 9.1), (decodes(8, 512), 11.7), (decodes(32, 512), 31.8), (prefill(1024), 576)],
)
def test_the_cpu_profile_is_its_machine_s_floor(shape: StepShape, milliseconds: float):
    timer = roofline("cpu-2core", "smollm2-135m")
    floor_s = timer.step_time_s(shape) - timer.gpu.step_overhead_s
    assert 1000 * floor_s == pytest.approx(milliseconds, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "model", "num_gpus", "num_kv_tokens"),
    [("a100-40gb", "opt-13b", 1, 15_700), ("a100-40gb", "opt-66b", 4, 9_700), ("a100-80gb", "opt-175b", 8, 60_100)],
)
def test_kv_memory_is_that_of_the_paged_attention_paper(gpu: str, model: str, num_gpus: int, num_kv_tokens: int):
    assert roofline(gpu, model, num_gpus).num_kv_tokens(0.9) == pytest.approx(num_kv_tokens, rel=0.06)


def test_a_lone_decode_reads_the_weights_and_a_long_prompt_computes():
    timer = roofline("H200", "Llama-3-8B")
    read_s = 15.0e9 / (4.8e12 * 0.9)
    assert timer.step_time_s(decodes(1, 1)) == pytest.approx(read_s + timer.gpu.step_overhead_s, rel=0.01)
    compute_s = 2 * 6.98e9 * 8192 / (989e12 * 0.8)
    assert compute_s < timer.step_time_s(prefill(8192)) < 1.6 * compute_s


def test_more_context_more_time_and_more_gpus_less():
    one, four = roofline("h100", "llama-3-8b"), roofline("h100", "llama-3-8b", 4)
    assert one.step_time_s(decodes(64, 1000)) < one.step_time_s(decodes(64, 2000))
    assert (
        one.step_time_s(decodes(64, 2000)) / 4
        < four.step_time_s(decodes(64, 2000))
        < one.step_time_s(decodes(64, 2000))
    )


@pytest.mark.parametrize(
    ("text", "name", "seconds"),
    [("fixed:2ms", "fixed:2ms", 0.002), ("fixed:500us", "fixed:500us", 0.0005), ("fixed:0.5s", "fixed:0.5s", 0.5)],
)
def test_fixed_profiles(text: str, name: str, seconds: float):
    profile = parse_profile(text)
    assert profile.name == name
    assert profile.step_time_s(decodes(5, 5)) == seconds


def test_profiles_name_gpu_model_and_parallelism():
    assert parse_profile("h200:llama-3-8b").name == "h200:llama-3-8b"
    assert parse_profile("H200:llama-3-70b:tp4").name == "h200:llama-3-70b:tp4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h300:llama-3-8b", "no profile of the GPU 'h300'; there are " + ", ".join(GPUS)),
        ("h200:llama-9", "no profile of the model 'llama-9'; there are " + ", ".join(MODELS)),
        ("h200", "GPU:MODEL:tpN"),
        ("h200:llama-3-8b:4", "GPU:MODEL:tpN"),
        ("h200:llama-3-8b:tp0", "GPU:MODEL:tpN"),
        ("h200:llama-3-8b:tp5", "does not divide the 32 attention heads"),
        ("cpu-2core:llama-3-8b:tp2", "no link"),
        ("fixed:2", "fixed:2ms"),
        ("fixed:", "fixed:2ms"),
        ("fixed:99999s", "at most 3600 s"),
    ],
)
def test_bad_profiles_are_explained(text: str, message: str):
    with pytest.raises(InvalidConfig, match=message.replace(".", r"\.")):
        parse_profile(text)


def test_weights_that_do_not_fit_are_an_error():
    with pytest.raises(InvalidConfig, match="leave no KV memory"):
        roofline("l4", "llama-3-70b").num_kv_tokens(0.9)
