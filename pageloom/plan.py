"""The values that scheduler and worker exchange for each step. `wire/` turns them into protobuf."""

from __future__ import annotations

from dataclasses import dataclass, field

from pageloom.outputs import PromptLogprobs, TokenLogprobs
from pageloom.policies import Pooling
from pageloom.sampling_params import SamplingParams

# Of one slot in a step. Guesses so far ahead are hardly ever right.
MAX_NUM_DRAFT_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A choice bound to a slot, sent once.

    `token_ids` are all known tokens: the first `num_prompt_tokens` are the prompt, the rest was
    generated before (a resumed, preempted or re-queued choice). `num_computed_tokens` < len(token_ids)
    leading tokens already have their KV in `block_ids`. `sampling.seed` and `sampling.max_tokens`
    are always set. Random numbers are keyed by (sampling.seed, choice_index, absolute position).
    Prompt tokens from index `first_scored_token` > num_computed_tokens on get log-probabilities; 0: none.
    With `pooling` all tokens are prompt, and the run that reaches the last draws nothing but pools them; for the mean
    none of them may be computed.
    """

    slot: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    choice_index: int = 0
    first_scored_token: int = 0
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One step's work, as changes to the worker's slots; protos/.../worker.proto gives the semantics.

    A slot runs its chunk if it is in `chunk_slots`; otherwise it runs one token if its last run drew
    a token, it has fewer than max_tokens and it is not in `held_slots`. A run that reaches the slot's last known token
    draws the next one, unless its prompt is pooled. A continuing decode therefore costs nothing in the plan.
    It may run as many drafts besides, tokens that the worker guesses, as its draft limit says: from this step on the
    `draft_limits` of `draft_slots`, 0 since its admission.
    """

    epoch: int
    step: int
    snapshot: bool = False
    released_slots: tuple[int, ...] = ()
    admissions: tuple[Admission, ...] = ()
    grown_slots: tuple[int, ...] = ()
    grown_counts: tuple[int, ...] = ()
    grown_block_ids: tuple[int, ...] = ()
    chunk_slots: tuple[int, ...] = ()
    chunk_lens: tuple[int, ...] = ()
    held_slots: tuple[int, ...] = ()
    copy_source_block_ids: tuple[int, ...] = ()
    copy_target_block_ids: tuple[int, ...] = ()
    draft_slots: tuple[int, ...] = ()
    draft_limits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a slot's run failed. `param` is the field of its SamplingParams that is at fault, "" if none is."""

    message: str
    param: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step drew: the next `token_counts[i]` of `token_ids` for `slots[i]`, in no particular order of slots;
    one for each if there are no counts.

    `draft_counts[i]` drafts were run for `slots[i]`, and all tokens but the last are those that were right; none
    were if there are no counts. `draft_limit` is how many are worth running in a batch like this one, if the worker
    says; `undrafted_duration_s` what as many tokens would have taken without drafts, if there were any.
    `logprobs` holds those of all its tokens for each slot whose sampling asked for them; `failures` one for
    each slot whose run failed. A failed slot drew no token. `prompt_logprobs` holds an entry for each slot
    whose chunk ran tokens right before prompt tokens that are to be scored, and `embeddings` one for each slot whose
    run reached the end of a prompt that is pooled: little-endian float32 [hidden].
    """

    epoch: int
    step: int
    slots: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    token_counts: tuple[int, ...] = ()
    draft_counts: tuple[int, ...] = ()
    draft_limit: int | None = None
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    prompt_logprobs: dict[int, PromptLogprobs] = field(default_factory=dict)
    embeddings: dict[int, bytes] = field(default_factory=dict)
    duration_s: float = 0.0
    undrafted_duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model a worker runs, as far as scheduler and gateway must know it. `pooling` is how its embeddings are meant;
    they have `hidden_size` values."""

    name: str
    digest: str
    architecture: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    weights_bytes: int
    hidden_size: int
    pooling: Pooling = Pooling.last


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo:
    """What one worker's KV memory holds."""

    block_size: int
    num_blocks: int
    kv_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello:
    """How a worker introduces itself when it attaches. `highest_epoch` is that of its earlier attachments; it runs at
    most `max_num_draft_tokens` guessed tokens for one slot in a step, and `num_stages` steps at one time, if none needs
    what those before it draw."""

    worker_id: str
    boot_id: str
    model: ModelInfo
    cache: CacheInfo
    max_num_seqs: int
    max_num_batched_tokens: int
    highest_epoch: int = 0
    max_num_draft_tokens: int = 0
    num_stages: int = 1
