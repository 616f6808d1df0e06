import pytest

from toolkit.engines.strategies import STRATEGIES
from toolkit.errors import UsageError
from toolkit.verify.options import choices, model_sizes, numbers


def test_lists_are_read():
    assert choices("--strategies", "ddp, zero3", STRATEGIES) == ["ddp", "zero3"]
    assert numbers("--world-sizes", "1, 2,4") == [1, 2, 4]
    assert model_sizes("gpt2-xl").n_layer == 48
    assert model_sizes("2,2,32,512,64").block_size == 64


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda: choices("--strategies", "zerro3", STRATEGIES), "did you mean 'zero3'"),
        (lambda: choices("--strategies", ",", STRATEGIES), "--strategies is empty"),
        (lambda: numbers("--grad-accum", "1,zero"), "--grad-accum must be whole numbers"),
        (lambda: numbers("--grad-accum", "0"), "--grad-accum must be whole numbers"),
        (lambda: model_sizes("gpt3"), "--model must be gpt2, gpt2-medium"),
        (lambda: model_sizes("2,3,32,512,64"), "n_embd 32 is no multiple of n_head 3"),
    ],
)
def test_anything_else_is_one_sentence(read, words):
    with pytest.raises(UsageError, match=words):
        read()
