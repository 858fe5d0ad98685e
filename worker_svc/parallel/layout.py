"""Which part of a model does each rank of a worker group hold?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pageloom.errors import InvalidConfig
from worker_svc.models.config import ExpertsConfig, LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One rank's place: ranks 0 to tensor_size - 1 are the last stage of the pipeline, the next ones that before it.

    So rank 0, which draws the tokens, is where the logits are.
    """

    tensor_size: int = 1
    pipeline_size: int = 1
    rank: int = 0

    @property
    def num_ranks(self) -> int:
        return self.tensor_size * self.pipeline_size

    @property
    def tensor_rank(self) -> int:
        """Its place among those that share each of its layers."""
        return self.rank % self.tensor_size

    @property
    def stage(self) -> int:
        return self.pipeline_size - 1 - self.rank // self.tensor_size

    @property
    def is_first(self) -> bool:
        """Whether tokens are embedded here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether logits are computed here."""
        return self.stage == self.pipeline_size - 1

    def stage_ranks(self, stage: int) -> range:
        """In the order of their tensor ranks."""
        start = (self.pipeline_size - 1 - stage) * self.tensor_size
        return range(start, start + self.tensor_size)

    def layers(self, num_layers: int) -> range:
        """Those of this stage. What does not divide goes to the first stages, for the last has the head."""
        size, rest = divmod(num_layers, self.pipeline_size)
        start = self.stage * size + min(self.stage, rest)
        return range(start, start + size + (self.stage < rest))

    def vocabulary(self, vocab_size: int, tensor_rank: int | None = None) -> range:
        """The token ids whose rows of embedding and head are at a tensor rank (None: this one)."""
        index = self.tensor_rank if tensor_rank is None else tensor_rank
        size, rest = divmod(vocab_size, self.tensor_size)
        start = index * size + min(index, rest)
        return range(start, start + size + (index < rest))

    def local_config(self, config: LlamaConfig) -> LlamaConfig:
        """The shape of this rank's part. Fewer key-value heads than ranks are repeated, each at several."""
        return replace(
            config,
            vocab_size=len(self.vocabulary(config.vocab_size)),
            num_layers=len(self.layers(config.num_layers)),
            num_heads=config.num_heads // self.tensor_size,
            num_kv_heads=max(1, config.num_kv_heads // self.tensor_size),
            intermediate_size=config.intermediate_size // self.tensor_size,
            experts=None if config.experts is None else self._local_experts(config.experts, config.num_layers),
        )

    def _local_experts(self, experts: ExpertsConfig, num_layers: int) -> ExpertsConfig:
        """Of each expert a part, and not some experts whole: so every rank has the same to do, whichever a token takes,
        and the one sum that a layer needs anyway is enough."""
        layers, shared_size = self.layers(num_layers), experts.shared_intermediate_size
        return replace(
            experts,
            intermediate_size=experts.intermediate_size // self.tensor_size,
            shared_intermediate_size=None if shared_size is None else shared_size // self.tensor_size,
            layers=frozenset(index - layers.start for index in experts.layers if index in layers),
        )


def check_layout(layout: Layout, config: LlamaConfig) -> None:
    """Raises InvalidConfig, with the sizes that fit, if the model cannot be split so."""
    if layout.pipeline_size > config.num_layers:
        raise InvalidConfig(
            f"--pipeline-parallel-size {layout.pipeline_size} is more than the model's {config.num_layers} layers; "
            f"sizes 1 to {config.num_layers} fit"
        )
    if not _divides(layout.tensor_size, config):
        sizes = [str(size) for size in range(1, config.num_heads + 1) if _divides(size, config)]
        raise InvalidConfig(
            f"--tensor-parallel-size {layout.tensor_size} does not divide the model's {config.num_heads} heads, "
            f"{config.num_kv_heads} key-value heads and {' and '.join(map(str, _inner_sizes(config)))} inner "
            f"dimensions of the feed-forward network; sizes that do: {', '.join(sizes)}"
        )


def _divides(size: int, config: LlamaConfig) -> bool:
    fits_kv_heads = config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0
    return (
        fits_kv_heads
        and config.num_heads % size == 0
        and all(inner % size == 0 for inner in _inner_sizes(config))
        and size <= config.vocab_size
    )


def _inner_sizes(config: LlamaConfig) -> list[int]:
    experts = config.experts
    if experts is None:
        return [config.intermediate_size]
    sizes = [experts.intermediate_size]
    if experts.shared_intermediate_size is not None:
        sizes.append(experts.shared_intermediate_size)
    if len(experts.layers) < config.num_layers:
        sizes.append(config.intermediate_size)
    return sizes
