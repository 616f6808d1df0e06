import pytest

from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import PRESETS, ModelSizes, parameter_count, preset_sizes
from toolkit.model.tensors import model_tensors


# Radford et al. 2019 give 117M to 1542M by an older count; these are the released checkpoints'.
@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_published_sizes(preset, parameters):
    sizes = preset_sizes(preset, vocab_size=50_257)
    assert sizes.parameter_count == parameters
    assert sizes.n_embd == 64 * sizes.n_head


def test_count_tensor_by_tensor():
    layers, width, vocab, block = 3, 8, 11, 5
    tensors = [vocab * width, block * width, width, width]
    for _ in range(layers):
        tensors += [width, width, width, width]  # two layer norms
        tensors += [width * 3 * width, 3 * width, width * width, width]  # attention
        tensors += [width * 4 * width, 4 * width, 4 * width * width, width]  # MLP
    assert parameter_count(layers, width, vocab, block) == sum(tensors)


def test_every_preset_splits_its_width_evenly():
    assert all(shape.n_embd % shape.n_head == 0 for shape in PRESETS.values())


def test_the_tensors_are_the_models():
    sizes = ModelSizes(n_layer=2, n_head=2, n_embd=8, vocab_size=11, block_size=5)
    shapes = [tuple(parameter.shape) for parameter in GPT2(sizes).parameters()]
    known = [(t.rows, t.columns) if t.is_matrix else (t.rows,) for t in model_tensors(sizes)]
    assert known == shapes
