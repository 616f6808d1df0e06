"""What a sweep goes through: lists of values whose combinations are its arms."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from toolkit.launch.links import LEAST_MBIT_PER_S, MOST_MBIT_PER_S
from benchmarks.record import Arm, Count, Sizes
from toolkit.config.problems import describe_problems, dotted_keys
from toolkit.config.strict_yaml import load_yaml_mapping
from toolkit.engines.strategies import (
    REPLICAS,
    SUPPORT,
    Accumulation,
    Precision,
    Strategy,
    has_hybrid_groups,
)
from toolkit.errors import UsageError
from toolkit.model.sizes import Loss
from toolkit.verify.options import model_sizes

SWEEPS = Path(__file__).with_name("sweeps")

Rate = Annotated[float, Field(ge=LEAST_MBIT_PER_S, le=MOST_MBIT_PER_S, allow_inf_nan=False)]
Some = Field(min_length=1)


def _check_model(text: str) -> str:
    try:
        model_sizes(text)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Axes(_Section):
    """Lists whose product is a set of arms, impossible combinations left out.

    Attributes:
        models: presets, or n_layer,n_head,n_embd,vocab_size,block_size as text.
        micro_batch_sizes: sequences per rank and micro-step.
        seq_lens: tokens per sequence; null is the model's block_size.
        world_sizes: ranks; a strategy that cannot have as many is left out.
        links_mbit_per_s: rates of a link between two ranks; null is the machine's own.
    """

    strategies: tuple[Strategy, ...] = Some
    accumulations: tuple[Accumulation, ...] = Field(("replicated", "sharded"), min_length=1)
    grad_accum_steps: tuple[Count, ...] = Some
    micro_batch_sizes: tuple[Count, ...] = Some
    seq_lens: tuple[Count | None, ...] = Field((None,), min_length=1)
    world_sizes: tuple[Count, ...] = Some
    models: tuple[Annotated[str, AfterValidator(_check_model)], ...] = Some
    precisions: tuple[Precision, ...] = Field(("fp32",), min_length=1)
    losses: tuple[Loss, ...] = Field(("plain",), min_length=1)
    activation_checkpointing: tuple[bool, ...] = Field((False,), min_length=1)
    compile: tuple[bool, ...] = Field((False,), min_length=1)
    data: tuple[Literal["synthetic", "real"], ...] = Field(("synthetic",), min_length=1)
    links_mbit_per_s: tuple[Rate | None, ...] = Field((None,), min_length=1)

    def arms(self) -> Iterator[Arm]:
        """Yield the arms; those that are compared with each other, strategies and modes, in a row.

        Raises:
            UsageError: a sequence is longer than the model's block_size.
        """
        for link, world_size, model, precision, loss, checkpointing, compiled, data in product(
            self.links_mbit_per_s,
            self.world_sizes,
            self.models,
            self.precisions,
            self.losses,
            self.activation_checkpointing,
            self.compile,
            self.data,
        ):
            sizes = Sizes(**vars(model_sizes(model)))
            for seq_len, micro_batch_size, grad_accum_steps, strategy, accumulation in product(
                self.seq_lens,
                self.micro_batch_sizes,
                self.grad_accum_steps,
                self.strategies,
                self.accumulations,
            ):
                if not is_possible(strategy, accumulation, world_size):
                    continue
                yield Arm(
                    strategy=strategy,
                    accumulation=accumulation,
                    grad_accum_steps=grad_accum_steps,
                    micro_batch_size=micro_batch_size,
                    seq_len=_seq_len(seq_len, sizes),
                    world_size=world_size,
                    precision=precision,
                    model=sizes,
                    loss=loss,
                    activation_checkpointing=checkpointing,
                    compile=compiled,
                    data=data,
                    link_mbit_per_s=link,
                )


def _seq_len(asked: int | None, sizes: Sizes) -> int:
    if asked is not None and asked > sizes.block_size:
        raise UsageError(f"seq_lens: {asked} is above the model's block_size {sizes.block_size}")
    return asked or sizes.block_size


def is_possible(strategy: Strategy, accumulation: Accumulation, world_size: int) -> bool:
    """Whether a strategy has the mode and can run on so many ranks."""
    if strategy == "single" and world_size > 1:
        return False
    if strategy == "hsdp" and not has_hybrid_groups(world_size):
        return False
    return SUPPORT[strategy][accumulation].possible


class Sweep(_Section):
    """Arms, and how each is measured.

    Attributes:
        repeats: of each arm, interleaved with those of the others.
        warm_up_steps: before each repeat.
        steps: timed in each repeat, at least ...
        seconds: ... and as many as fill this time.
        split_steps: instrumented steps.
        alive: process groups kept at one time, to take turns; fewer where they do not fit.
        threads: of each rank.
        timeout_s: for whatever an arm does in one go.
        shards: folders or patterns of prepared data, for real data.
        arms: sets of axes, one after another.
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
    arms: tuple[Axes, ...] = Some

    def all_arms(self) -> list[Arm]:
        """Return every arm once, in order.

        Raises:
            UsageError: nothing is possible, or real data is asked for and none is named.
        """
        arms = list(dict.fromkeys(arm for axes in self.arms for arm in axes.arms()))
        if not arms:
            modes = f"{REPLICAS} replica groups of hybrid sharding need 4 ranks, single has one"
            raise UsageError(f"no strategy has these modes on so many ranks ({modes})")
        if any(arm.data == "real" for arm in arms) and not self.shards:
            raise UsageError("real data needs shards: name folders that `toolkit data` prepared")
        return arms


def load_sweep(name: str) -> tuple[str, Sweep]:
    """Return the name and contents of a ready-made sweep, or of a file.

    Raises:
        UsageError: there is no such sweep, or one line for each problem in it.
    """
    ready_made = {path.stem: path for path in sorted(SWEEPS.glob("*.yaml"))}
    path = ready_made.get(name, Path(name))
    if path.suffix != ".yaml":
        raise UsageError(f"no sweep '{name}'; there are {', '.join(ready_made)}, or FILE.yaml")
    try:
        return path.stem, Sweep.model_validate(load_yaml_mapping(path))
    except ValidationError as error:
        raise UsageError("\n".join(describe_problems(error, _KEYS, lambda _: str(path)))) from None


_KEYS = [*dotted_keys(Sweep), *dotted_keys(Axes)]
