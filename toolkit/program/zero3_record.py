"""In which order GPT-2's modules are entered in one pass, as DeepSpeed records it."""

from typing import NamedTuple

Key = tuple[str, int, bool]
"""Module, layer, and whether it is the backward pass, as the walk names them."""

WTE, WPE = 0, 1
"""The first two parameters of the model."""
EMBEDDINGS_BACKWARD: tuple[Key, Key] = (("wte", -1, True), ("wpe", -1, True))


class Visit(NamedTuple):
    """One entry of the record: parameters by number; `key` is None where the walk does not stop."""

    key: Key | None
    parameters: tuple[int, ...]


def record_of(n_layer: int, *, recomputes: bool) -> list[Visit]:
    """Return the record of one pass forward and backward."""
    blocks = [_Block(layer) for layer in range(n_layer)]
    norm = (_first_of(n_layer), _first_of(n_layer) + 1)
    record = [_silent(), _silent(), Visit(("wte", -1, False), (WTE,))]
    record += [Visit(("wpe", -1, False), (WPE,)), _silent()]
    for block in blocks:
        record += block.forward()
    record += [Visit(("ln_f", -1, False), norm), Visit(("lm_head", -1, False), (WTE,))]
    record += [_silent(), Visit(("lm_head", -1, True), (WTE,)), _silent()]
    record.append(Visit(("ln_f", -1, True), norm))
    for block in reversed(blocks):
        record += block.recompute_and_backward() if recomputes else block.backward()
    record += [_silent(), Visit(("wpe", -1, True), (WPE,)), Visit(("wte", -1, True), (WTE,))]
    return record


def _first_of(layer: int) -> int:
    """Number of a block's first parameter: behind both embeddings and twelve of each before it."""
    return 2 + 12 * layer


def _silent() -> Visit:
    """A container, an activation function or a dropout: no parameters, but a chance to prefetch."""
    return Visit(None, ())


class _Block:
    """The visits of one block; parameters are numbered in the model's order."""

    def __init__(self, layer: int) -> None:
        first = _first_of(layer)
        names = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
        pairs = {name: (first + 2 * i, first + 2 * i + 1) for i, name in enumerate(names)}
        self.there = {name: Visit((name, layer, False), pair) for name, pair in pairs.items()}
        self.back = {name: Visit((name, layer, True), pair) for name, pair in pairs.items()}

    def forward(self) -> list[Visit]:
        """Visit block, norm, attention, its parts and dropout, norm, MLP, its parts and dropout."""
        there = self.there
        return [
            *(_silent(), there["ln_1"], _silent(), there["attn.c_attn"], there["attn.c_proj"]),
            *(_silent(), there["ln_2"], _silent(), there["mlp.c_fc"], _silent()),
            *(there["mlp.c_proj"], _silent()),
        ]

    def backward(self) -> list[Visit]:
        """The same the other way round; containers come before their parts here too."""
        back = self.back
        return [*(_silent(), _silent(), _silent(), back["mlp.c_proj"]), *self._after_last_product()]

    def recompute_and_backward(self) -> list[Visit]:
        """Recomputation begins below the last product and ends with entering it again."""
        product = self.back["mlp.c_proj"]
        return [
            *(_silent(), _silent(), _silent(), Visit(None, product.parameters)),
            *self.forward()[:-2],
            product,
            *self._after_last_product(),
        ]

    def _after_last_product(self) -> list[Visit]:
        back = self.back
        return [
            *(_silent(), back["mlp.c_fc"], back["ln_2"], _silent(), _silent()),
            *(back["attn.c_proj"], back["attn.c_attn"], back["ln_1"]),
        ]
