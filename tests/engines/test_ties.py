import copy

import pytest
from torch import nn

from tests.distributed.other_model import Convolutional
from toolkit.engines.blocks import blocks_of
from toolkit.engines.ties import check_ties, tie_again, tied_names
from toolkit.errors import UsageError
from toolkit.model.gpt2 import GPT2
from toolkit.training.build import TIED
from toolkit.verify.cases import TINY


def test_ties_are_found_and_made_again_without_the_models_help() -> None:
    model = Convolutional(tied=True)
    ties = tied_names(model)
    assert ties == [("words.weight", "out.weight")]
    model.out.weight = nn.Parameter(model.out.weight.detach().clone())
    assert tied_names(model) == []
    tie_again(model, ties)
    assert model.out.weight is model.words.weight


def test_gpt2s_tie_is_the_one_that_is_checked_and_other_models_have_none() -> None:
    assert tied_names(GPT2(TINY)) == [TIED]
    assert tied_names(Convolutional(tied=False)) == []


def test_a_weight_that_two_blocks_share_is_refused() -> None:
    model = Convolutional(tied=False)
    first, second, _ = model.layers
    second.mix.weight = first.mix.weight
    ties = tied_names(model)
    with pytest.raises(UsageError, match=r"^layers\.0\.mix\.weight and layers\.1\.mix\.weight are"):
        check_ties(model, ties, blocks_of(model))
    check_ties(model, ties, [])


def test_a_weight_that_a_block_shares_with_the_rest_is_refused() -> None:
    model = Convolutional(tied=False)
    model.layers[0].extra = nn.Linear(16, 96)
    model.layers[0].extra.weight = model.words.weight
    with pytest.raises(UsageError, match="sharded apart"):
        check_ties(model, tied_names(model), blocks_of(model))


def test_a_weight_shared_inside_one_block_is_not() -> None:
    model = Convolutional(tied=True)
    model.layers[0].twin = copy.deepcopy(model.layers[0].norm)
    model.layers[0].twin.weight = model.layers[0].norm.weight
    check_ties(model, tied_names(model), blocks_of(model))
