"""What a sweep goes through: lists of values whose combinations are its cases."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from benchmarks.record import Case, Count
from toolkit.config.accumulation import SettledAccumulation
from toolkit.config.problems import describe_problems, dotted_keys
from toolkit.config.strict_yaml import load_yaml_mapping
from toolkit.engines.mixture import Mixture, check_possible
from toolkit.engines.reduction import Reduce
from toolkit.engines.strategies import (
    REPLICAS,
    Accumulation,
    Precision,
    Strategy,
    has_hybrid_groups,
)
from toolkit.errors import UsageError
from toolkit.launch.links import LEAST_MBIT_PER_S, MOST_MBIT_PER_S
from toolkit.model.sizes import Loss, ModelSizes
from toolkit.verify.options import model_sizes

SWEEPS = Path(__file__).with_name("sweeps")

Rate = Annotated[float, Field(ge=LEAST_MBIT_PER_S, le=MOST_MBIT_PER_S, allow_inf_nan=False)]
Some = Field(min_length=1)


def _usually(*values: Any) -> Any:
    return Field(values, min_length=1)


def _check_model(text: str) -> str:
    try:
        model_sizes(text)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Axes(_Section):
    """Lists whose product is a set of cases, impossible combinations skipped.

    Attributes:
        models: presets, or n_layer,n_head,n_embd,vocab_size,block_size as text.
        micro_batch_sizes: sequences per rank and micro-step.
        seq_lens: tokens per sequence; null is the model's block_size.
        world_sizes: ranks; a strategy that cannot have as many is skipped.
        links_mbit_per_s: rates of a link between two machines, each with half of the ranks; null is
            the machine's own.
    """

    strategies: tuple[Strategy, ...] = Some
    accumulations: tuple[SettledAccumulation, ...] = _usually("replicated", "sharded")
    reductions: tuple[Reduce | None, ...] = _usually(None)
    grad_accum_steps: tuple[Count, ...] = Some
    micro_batch_sizes: tuple[Count, ...] = Some
    seq_lens: tuple[Count | None, ...] = _usually(None)
    world_sizes: tuple[Count, ...] = Some
    models: tuple[Annotated[str, AfterValidator(_check_model)], ...] = Some
    precisions: tuple[Precision, ...] = _usually("fp32")
    losses: tuple[Loss, ...] = _usually("plain")
    activation_checkpointing: tuple[bool, ...] = _usually(False)
    compile: tuple[bool, ...] = _usually(False)
    data: tuple[Literal["synthetic", "real"], ...] = _usually("synthetic")
    links_mbit_per_s: tuple[Rate | None, ...] = _usually(None)

    def combinations(self) -> Iterator[Case]:
        """Yield the cases; those that are compared with each other, strategies and modes, in a row.

        Raises:
            UsageError: a sequence is longer than the model's block_size.
        """
        # From the one that changes least often to the one that changes most often.
        fields: dict[str, Sequence[Any]] = {
            "link_mbit_per_s": self.links_mbit_per_s,
            "world_size": self.world_sizes,
            "model": [model_sizes(model) for model in self.models],
            "precision": self.precisions,
            "loss": self.losses,
            "activation_checkpointing": self.activation_checkpointing,
            "compile": self.compile,
            "data": self.data,
            "seq_len": self.seq_lens,
            "micro_batch_size": self.micro_batch_sizes,
            "grad_accum_steps": self.grad_accum_steps,
            "reduce": self.reductions,
            "strategy": self.strategies,
            "accumulation": self.accumulations,
        }
        for values in product(*fields.values()):
            chosen = dict(zip(fields, values, strict=True))
            if is_possible(chosen["strategy"], chosen["accumulation"], chosen["world_size"]):
                yield Case(**{**chosen, "seq_len": _seq_len(chosen["seq_len"], chosen["model"])})


def _seq_len(asked: int | None, sizes: ModelSizes) -> int:
    if asked is not None and asked > sizes.block_size:
        raise UsageError(f"seq_lens: {asked} is above the model's block_size {sizes.block_size}")
    return asked or sizes.block_size


def is_possible(strategy: Strategy, accumulation: Accumulation | Mixture, world_size: int) -> bool:
    """Whether a strategy has the mode and can run on so many ranks."""
    if strategy == "single" and world_size > 1:
        return False
    if strategy == "hsdp" and not has_hybrid_groups(world_size):
        return False
    try:
        check_possible(strategy, accumulation)
    except UsageError:
        return False
    return True


class Sweep(_Section):
    """Cases, and how each is measured.

    Attributes:
        repeats: of each case, interleaved with those of the others.
        warm_up_steps: before each repeat.
        steps: timed in each repeat, at least ...
        seconds: ... and as many as fill this time.
        split_steps: instrumented steps.
        alive: process groups kept at one time, to take turns; fewer where they do not fit.
        threads: of each rank.
        timeout_s: for whatever a case does in one go.
        shards: folders or patterns of prepared data, for real data.
        cases: sets of axes, one after another.
    """

    repeats: Count = 3
    warm_up_steps: Annotated[int, Field(ge=0)] = 1
    steps: Count = 3
    seconds: Annotated[float, Field(ge=0)] = 0.0
    split_steps: Count = 2
    alive: Count = 6
    threads: Count = 1
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    shards: tuple[str, ...] = ()
    # Earlier versions named it "arms".
    cases: tuple[Axes, ...] = Field(min_length=1, validation_alias=AliasChoices("cases", "arms"))

    def all_cases(self) -> list[Case]:
        """Return every case once, in order.

        Raises:
            UsageError: nothing is possible, or real data is asked for and none is named.
        """
        cases = list(dict.fromkeys(case for axes in self.cases for case in axes.combinations()))
        if not cases:
            modes = f"{REPLICAS} replica groups of hybrid sharding need 4 ranks, single has one"
            raise UsageError(f"no strategy has these modes on so many ranks ({modes})")
        if any(case.data == "real" for case in cases) and not self.shards:
            raise UsageError("real data needs shards: name folders that `toolkit data` prepared")
        return cases


def load_sweep(name: str) -> tuple[str, Sweep]:
    """Return the name and contents of a ready-made sweep, or of a file.

    Raises:
        UsageError: there is no such sweep, or one line for each problem in it.
    """
    ready_made = {path.stem: path for path in sorted(SWEEPS.glob("*.yaml"))}
    path = ready_made.get(name, Path(name))
    if path.suffix != ".yaml":
        raise UsageError(f"no sweep '{name}'; there are {', '.join(ready_made)}, or FILE.yaml")
    return path.stem, read_sweep(load_yaml_mapping(path), str(path))


def read_sweep(fields: Mapping[str, Any], source: str) -> Sweep:
    """Return a sweep from its fields as they were written.

    Raises:
        UsageError: one line for each problem, which names the source.
    """
    try:
        return Sweep.model_validate(fields)
    except ValidationError as error:
        raise UsageError("\n".join(describe_problems(error, _KEYS, lambda _: source))) from None


_KEYS = [*dotted_keys(Sweep), *dotted_keys(Axes)]
