"""A run's state as named fp32 tensors, cut into pieces that each rank writes and reads by itself.

A piece is a contiguous range of one flattened tensor, named `kind/parameter/first element`. Which
rank of which engine wrote it does not matter: a reader takes the elements that it holds from
whatever pieces they are in, so a state moves between engines and world sizes, and no rank ever has
the whole of it.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from toolkit.checkpoint.tensors import Entry
from toolkit.engines.engine import Engine
from toolkit.engines.state import Kind
from toolkit.errors import UntrustedError

MOMENTS: tuple[Kind, ...] = ("exp_avg", "exp_avg_sq")


def part_name(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank_{rank:05d}.safetensors"


def shapes_of(engine: Engine) -> dict[str, list[int]]:
    """Return the shape of every whole parameter."""
    return {name: list(_full_shape(p)) for name, p in engine.module.named_parameters()}


def own_pieces(engine: Engine, *, with_moments: bool) -> list[Entry]:
    """Return this rank's share of the state, as views that follow the training."""
    kinds: tuple[Kind, ...] = ("parameter", *(MOMENTS if with_moments else ()))
    pieces = []
    for kind in kinds:
        for name, parameter in engine.module.named_parameters():
            own = engine.state.own_share(parameter)
            if own:
                read = partial(_own_values, engine, parameter, kind)
                pieces.append(Entry(f"{kind}/{name}/{own.start}", (len(own),), read))
    return pieces


def _own_values(engine: Engine, parameter: nn.Parameter, kind: Kind) -> torch.Tensor:
    held, own = engine.state.held(parameter), engine.state.own_share(parameter)
    values = engine.state.held_values(parameter, kind)
    return values[own.start - held.start : own.stop - held.start]


def read_state(engine: Engine, folder: Path, *, with_moments: bool, updates: int) -> None:
    """Load a checkpoint's tensors into the same or any other engine and world size.

    Each rank reads the elements it holds, one piece at a time.

    Args:
        engine: freshly built, or to be taken back to an earlier state.
        folder: a checkpoint that has been verified.
        with_moments: whether the checkpoint has AdamW moments.
        updates: optimizer updates behind the state, which AdamW's bias correction needs.

    Raises:
        UntrustedError: a parameter is missing, too many, incomplete, or of another size.
    """
    with ExitStack() as open_files, torch.no_grad():
        state = PortableState(folder, open_files)
        sizes = {name: _full_shape(p).numel() for name, p in engine.module.named_parameters()}
        kinds: tuple[Kind, ...] = ("parameter", *(MOMENTS if with_moments else ()))
        for kind in kinds:
            state.check_complete(kind, sizes)
        _fill(engine, state, "parameter")
        engine.state.finish_loading()
        if with_moments:
            engine.state.start_moments(updates)
            for moment in MOMENTS:
                _fill(engine, state, moment)


def _fill(engine: Engine, state: "PortableState", kind: Kind) -> None:
    for name, parameter in engine.module.named_parameters():
        held = engine.state.held(parameter)
        if not held:
            continue
        values = engine.state.held_values(parameter, kind)
        for start, piece in state.read(kind, name, held):
            values[start - held.start :][: len(piece)].copy_(piece)


@dataclass(frozen=True)
class _Piece:
    elements: range
    file: Any
    key: str


class PortableState:
    """The pieces of a checkpoint's tensors, found by what they are of.

    Raises:
        UntrustedError: a file is not a safetensors file of pieces.
    """

    def __init__(self, folder: Path, open_files: ExitStack) -> None:
        self.folder = folder
        self._pieces: dict[tuple[str, str], list[_Piece]] = defaultdict(list)
        for path in sorted(folder.glob("rank_*.safetensors")):
            try:
                file = open_files.enter_context(safe_open(path, framework="pt"))
                for key in file.keys():  # noqa: SIM118
                    self._add(file, key)
            except (SafetensorError, ValueError, OSError) as error:
                raise UntrustedError(f"{path} does not hold pieces of a state: {error}") from None
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece.elements.start)

    def _add(self, file: Any, key: str) -> None:
        (kind, rest), entry = key.split("/", 1), file.get_slice(key)
        name, start = rest.rsplit("/", 1)
        (size,) = entry.get_shape()
        if entry.get_dtype() != "F32":
            raise ValueError(f"'{key}' is {entry.get_dtype()}, not F32")
        elements = range(int(start), int(start) + size)
        self._pieces[kind, name].append(_Piece(elements, file, key))

    def check_complete(self, kind: Kind, sizes: dict[str, int]) -> None:
        """Require every element of every parameter once, and nothing else.

        Raises:
            UntrustedError: names the parameter.
        """
        names = {name for found, name in self._pieces if found == kind}
        if differing := names ^ sizes.keys():
            raise UntrustedError(
                f"{self.folder} and the model differ in {kind} of '{min(differing)}'"
            )
        for name, size in sizes.items():
            end = 0
            for piece in self._pieces[kind, name]:
                if piece.elements.start != end:
                    end = -1
                    break
                end = piece.elements.stop
            if end != size:
                raise UntrustedError(
                    f"{self.folder}: the pieces of {kind} '{name}' are not its {size} elements"
                )

    def read(self, kind: Kind, name: str, held: range) -> Iterable[tuple[int, torch.Tensor]]:
        """Yield what there is of the elements `held`: first element and values, piece by piece."""
        for piece in self._pieces[kind, name]:
            first = max(piece.elements.start, held.start)
            last = min(piece.elements.stop, held.stop)
            if first < last:
                offset = piece.elements.start
                yield first, piece.file.get_slice(piece.key)[first - offset : last - offset]

    def whole(self, kind: Kind, name: str, shape: Iterable[int]) -> torch.Tensor:
        """Return one whole tensor."""
        size = torch.Size(shape)
        pieces = [values for _, values in self.read(kind, name, range(size.numel()))]
        return torch.cat(pieces).view(size)


def _full_shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of the whole parameter; stage 3 keeps it aside while the parameter itself is empty."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
