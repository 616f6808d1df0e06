"""The data of a run, opened and checked; needs no torch, so it can be done before a launch."""

from toolkit.batching import BatchPlan, plan_batch
from toolkit.config import RunConfig
from toolkit.data.batches import GlobalBatches, TokenDataset
from toolkit.data.shared_documents import describe_shared
from toolkit.data.stream import TokenStream
from toolkit.model.sizes import GPT2_VOCAB_SIZE

_COMPARED_TOKENS = 50_000_000


def plan_run(config: RunConfig, *, world_size: int) -> BatchPlan:
    """Cut the run's global batch for a number of ranks.

    Raises:
        UsageError: it does not divide.
    """
    return plan_batch(
        tokens_per_step=config.batch.tokens_per_step,
        seq_len=config.data.seq_len,
        micro_batch_size=config.batch.micro_batch_size,
        world_size=world_size,
    )


def build_batches(config: RunConfig, plan: BatchPlan, *, rank: int) -> GlobalBatches:
    """Open the training shards as one rank's part of every global batch.

    Raises:
        UsageError: shards are missing, of the wrong kind, or too few for one step.
        UntrustedError: shards are damaged.
    """
    return GlobalBatches(
        _dataset(config, config.data.train),
        sequences_per_step=plan.sequences_per_step,
        micro_batch_size=plan.micro_batch_size,
        grad_accum_steps=plan.grad_accum_steps,
        world_size=plan.world_size,
        rank=rank,
        seed=config.seed,
        shuffle=config.data.shuffle,
    )


def build_val(config: RunConfig) -> TokenDataset | None:
    """Open the validation shards, if the run has any; raises as `build_batches` does."""
    return _dataset(config, config.data.val) if config.data.val else None


def describe_shared_data(config: RunConfig) -> list[str]:
    """Return what the training and the validation set have in common, where that is quick to see.

    Some 60 million tokens a second are compared on one core; `toolkit data verify` has no limit.
    """
    sets = {"data.train": config.data.train, "data.val": config.data.val}
    if not config.data.val:
        return []
    tokens = sum(len(_dataset(config, paths).stream) for paths in sets.values())
    return describe_shared(sets) if tokens <= _COMPARED_TOKENS else []


def _dataset(config: RunConfig, paths: tuple[str, ...]) -> TokenDataset:
    # Rows beyond GPT-2's vocabulary only pad it: they are neither sampled nor exported.
    vocab_size = min(config.model.vocab_size, GPT2_VOCAB_SIZE)
    stream = TokenStream(paths, vocab_size=vocab_size)
    return TokenDataset(stream, seq_len=config.data.seq_len)
