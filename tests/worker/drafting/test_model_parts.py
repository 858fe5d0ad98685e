"""What drafters take from a model: what goes into its layers, rows of its embedding, and its first layers."""

import pytest
import torch

from pageloom.model_files import locate_model
from pageloom_kernels import HiddenTaps
from pageloom_kernels.cpu.library import load_cpu_library
from pageloom_kernels.cpu.thread_pool import ThreadPool
from tests.support.one_sequence import one_run
from tests.support.tiny_checkpoints import make_checkpoint
from worker_svc.kv_cache import allocate_kv_cache
from worker_svc.loader import load_model, open_checkpoint
from worker_svc.models.model import Model

NUM_LAYERS = 4
LAYERS = (0, 3, 1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("target")


@pytest.fixture(scope="module")
def reference(folder):
    return make_checkpoint(folder, num_hidden_layers=NUM_LAYERS, initializer_range=0.1)


def load(folder, runs_in_library: bool) -> Model:
    pool = ThreadPool(load_cpu_library(), 1) if runs_in_library else None
    return load_model(
        open_checkpoint(locate_model(str(folder))), num_positions=64,
        dtype=torch.bfloat16 if runs_in_library else torch.float32, device=CPU, cpu_pool=pool, ggml_types={},
        progress=lambda _done, _total: None,
    )[0]  # fmt: skip


@pytest.mark.parametrize("runs_in_library", [False, True])
@torch.inference_mode()
def test_what_goes_into_layers_and_the_first_of_them(folder, reference, runs_in_library):
    model = load(folder, runs_in_library)
    # No tighter than the rounding of bfloat16, which transformers does not do here.
    rtol, atol = (0.05, 0.15) if runs_in_library else (1e-4, 1e-4)
    token_ids = torch.randint(211, (40,), generator=torch.Generator().manual_seed(1))
    expected = reference(token_ids[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(model.embed(token_ids).float(), expected[0][0], rtol=rtol, atol=atol)

    kv = allocate_kv_cache(
        model.config, num_blocks=2, block_size=32, dtype=model.embed(token_ids).dtype, device=CPU
    ).layers  # fmt: skip
    states = torch.full((40, len(LAYERS), 64), torch.nan, dtype=kv[0].dtype)
    for start, end in ((0, 30), (30, 39), (39, 40)):
        part = HiddenTaps(layers=LAYERS, states=states[start:end])
        # A step that asks for no output fills the taps too.
        model.forward(token_ids[start:end], one_run(start, end), kv, torch.arange(0), part)
    for tap, layer in enumerate(LAYERS):
        torch.testing.assert_close(states[:, tap].float(), expected[layer][0], rtol=rtol, atol=atol)

    first = model.first_layers(2)
    assert (first.config.num_layers, model.config.num_layers) == (2, NUM_LAYERS)
    hidden = first.forward(token_ids, one_run(0, 40), kv[:2], torch.arange(40))
    expected_logits = reference.lm_head(reference.model.norm(expected[2][0]))
    torch.testing.assert_close(first.logits(hidden).float(), expected_logits, rtol=rtol, atol=atol)
