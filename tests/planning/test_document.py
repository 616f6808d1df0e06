"""The samples of docs/planning.md are what is printed, to the letter."""

import pytest

from tests.samples import ROOT, sample
from tests.test_samples import printed_by

COMMANDS = [
    "toolkit plan --preset gpt2-xl precision=bf16 --gpus 64 --gpu H100-80"
    " --between-machines 400Gbit --strategies ddp,fsdp2,hsdp,zero3 --train-tokens 10000000000",
    "toolkit plan --cluster aws-p5 --gpus 64 --micro-batch-size 2 --grad-accum-steps 16"
    " model.block_size=4096 precision=bf16 --strategies fsdp2",
    "toolkit plan --gpus 7 --tokens-per-step 524288 precision=bf16",
    "toolkit plan --preset gpt2-xl --cluster aws-p4d --gpus 16 --strategies fsdp2 --curve gpus"
    " precision=bf16",
    "toolkit plan --preset gpt2-xl --gpus 8 --bytes-per-weight precision=bf16",
    "toolkit train --strategy fsdp2 --config configs/train/demo.yaml --scale-lr-from 256"
    " --show-schedule",
]


@pytest.mark.sample
@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_printed(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    sample(command).assert_is(printed_by(command, capsys, monkeypatch))
