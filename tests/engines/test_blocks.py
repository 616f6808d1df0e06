from torch import nn

from tests.distributed.other_model import DEPTH, Convolutional, Layer
from toolkit.engines.blocks import blocks_of, sizes_of
from toolkit.engines.deepspeed_config import zero_optimization
from toolkit.model.gpt2 import GPT2, Block
from toolkit.verify.cases import TINY


def test_the_blocks_of_a_model_are_its_lists_of_one_class() -> None:
    assert [type(block) for block in blocks_of(GPT2(TINY))] == [Block, Block]
    assert [type(block) for block in blocks_of(Convolutional(tied=True))] == DEPTH * [Layer]


def test_a_list_inside_a_block_is_part_of_it_and_plain_layers_are_no_blocks() -> None:
    def expert() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.GELU())

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(expert() for _ in range(3))

    mixtures = nn.ModuleList(Mixture() for _ in range(2))
    heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))
    model = nn.ModuleDict({"mixtures": mixtures, "heads": heads})
    assert blocks_of(model) == list(mixtures)
    assert blocks_of(nn.Sequential(nn.Linear(2, 2), nn.GELU())) == []


def test_block_classes_can_be_given() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2))
    assert blocks_of(model, [nn.Linear]) == [model[0], model[2]]


def test_a_measured_gpt2_gives_the_configuration_that_its_sizes_give() -> None:
    model = GPT2(TINY)
    measured = sizes_of(model, blocks_of(model))
    assert measured.parameter_count == TINY.parameter_count
    assert measured.block_parameters == TINY.block_parameters
    assert measured.largest_vector == TINY.largest_vector
    for strategy in ("zero1", "zero2", "zero3"):
        assert zero_optimization(strategy, measured) == zero_optimization(strategy, TINY)  # type: ignore[arg-type]


def test_a_model_without_blocks_is_measured_whole() -> None:
    measured = sizes_of(nn.Linear(4, 3), [])
    assert (measured.parameter_count, measured.block_parameters) == (15, 15)
    assert measured.largest_vector == 3
