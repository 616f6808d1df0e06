import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import describe_environment
from toolkit.model.flops import flops_per_token, peak_flops_per_s
from toolkit.model.gpt2 import GPT2
from toolkit.model.sizes import ModelSizes


def test_arithmetic_is_what_pytorch_counts() -> None:
    sizes = ModelSizes(n_layer=3, n_head=4, n_embd=128, vocab_size=1024, block_size=64)
    tokens = torch.zeros(2, 64, dtype=torch.int64)
    # It counts matrix products alone; the formula adds 6 for each bias and norm weight.
    vectors = 6 * sizes.n_layer * 13 * sizes.n_embd + 6 * 2 * sizes.n_embd
    # Of attention it knows the products that the plain kernel is made of.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        GPT2(sizes)(tokens, tokens).backward()
    per_token = counted.get_total_flops() / tokens.numel()
    assert flops_per_token(sizes, seq_len=64) - vectors == per_token


def test_a_peak_is_known_or_none() -> None:
    assert peak_flops_per_s("NVIDIA H200", "bf16") == 989e12
    assert peak_flops_per_s("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops_per_s("Tesla V100-SXM2-32GB", "fp16") == 125e12
    assert peak_flops_per_s("Tesla V100-SXM2-32GB", "bf16") is None
    assert peak_flops_per_s("NVIDIA H200", "fp32") is None
    assert peak_flops_per_s("cpu", "bf16") is None


def test_the_environment_is_described() -> None:
    found = describe_environment("cpu", threads=1)
    assert {"python", "torch", "accelerate", "deepspeed"} <= found.versions.keys()
    assert found.cpu
    assert found.cores >= 1
