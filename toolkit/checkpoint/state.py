"""A run's state as named, full-shape fp32 tensors, the same whatever engine it came from."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from toolkit.backends.engine import Engine, Moment
from toolkit.errors import UntrustedError

PARAMETERS = "parameters"
MOMENTS: tuple[Moment, ...] = get_args(Moment)


def write_state(engine: Engine, folder: Path, *, with_moments: bool) -> None:
    """Write one safetensors file each for parameters and AdamW moments.

    Tensors are gathered one by one; rank 0 holds the whole of one file at a time in host memory.
    Every rank must call this.
    """
    _write(engine, folder / f"{PARAMETERS}.safetensors", engine.full_parameter)
    for moment in MOMENTS if with_moments else ():
        read = partial(engine.full_moment, moment=moment)
        _write(engine, folder / f"{moment}.safetensors", read)


def _write(engine: Engine, path: Path, read: Callable[[nn.Parameter], torch.Tensor]) -> None:
    tensors = {}
    for name, parameter in engine.named_parameters():
        whole = read(parameter)
        if engine.rank == 0:
            tensors[name] = whole.to("cpu", torch.float32, copy=True).contiguous()
    if engine.rank == 0:
        save_file(tensors, path)


def read_state(engine: Engine, folder: Path, *, with_moments: bool, steps: int) -> None:
    """Load what `write_state` wrote, into the same or any other engine and world size.

    Args:
        engine: freshly built.
        folder: a checkpoint that has been verified.
        with_moments: whether the optimizer keeps AdamW moments.
        steps: updates behind the state, which AdamW's bias correction needs.

    Raises:
        UntrustedError: a parameter is missing, too many, or of another shape.
    """
    parameters = dict(engine.named_parameters())
    shapes = {name: _full_shape(parameter) for name, parameter in parameters.items()}
    for name, value in _read(folder / f"{PARAMETERS}.safetensors", shapes):
        engine.load_parameter(parameters[name], value)
    engine.finish_loading()
    if not with_moments:
        return
    files = [_read(folder / f"{moment}.safetensors", shapes) for moment in MOMENTS]
    for entries in zip(*files, strict=True):
        moments = {moment: value for moment, (_, value) in zip(MOMENTS, entries, strict=True)}
        engine.load_moments(parameters[entries[0][0]], moments, steps=steps)


def _read(path: Path, shapes: dict[str, torch.Size]) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        differing = set(file.keys()) ^ shapes.keys()
        if differing:
            raise UntrustedError(f"{path} and the model differ in the parameter '{min(differing)}'")
        for name, shape in shapes.items():
            value = file.get_tensor(name)
            if value.shape != shape:
                raise UntrustedError(
                    f"{path}: '{name}' is {list(value.shape)} but the model has {list(shape)}"
                )
            yield name, value


def _full_shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of the whole parameter; stage 3 keeps it aside while the parameter itself is empty."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
