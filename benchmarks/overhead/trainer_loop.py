"""Hugging Face's Trainer under DDP.

With its defaults, but that it searches for no unused parameters and logs once a turn.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.overhead.turns import LoopOrder, Turns, main
from benchmarks.overhead.workload import GRAD_CLIP, LR, build_model, read_tokens


class WithLoss(nn.Module):
    """The same model under the names that Trainer looks for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the mean loss, which Trainer divides by the micro-steps."""
        return {"loss": self.model(input_ids, labels) / labels.numel()}


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """The shard's sequences [seq_len] in order."""

    def __init__(self, tokens: torch.Tensor, seq_len: int) -> None:
        self.tokens = tokens
        self.seq_len = seq_len

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_len

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        piece = self.tokens[index * self.seq_len : (index + 1) * self.seq_len + 1]
        return {"input_ids": piece[:-1], "labels": piece[1:]}


class TakingTurns(TrainerCallback):
    """Waits for the case's turns and reports the loss."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait, where a turn begins."""
        self.turns.before_step(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take the mean loss since the last time."""
        if "loss" in logs:
            self.turns.loss(logs["loss"])


def train(order: LoopOrder, turns: Turns) -> None:
    """Train until there are no more turns."""
    workload = order.workload
    has_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(order.folder),
        use_cpu=not has_gpu,
        ddp_backend="nccl" if has_gpu else "gloo",
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=workload.micro_batch_size,
        gradient_accumulation_steps=workload.grad_accum_steps,
        max_steps=workload.steps_per_turn * workload.turns + 1,
        train_sampling_strategy="sequential",
        learning_rate=LR,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.1,
        max_grad_norm=GRAD_CLIP,
        logging_steps=workload.steps_per_turn,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=has_gpu,
    )
    Trainer(
        model=WithLoss(build_model(workload, order.case.loss)),
        args=arguments,
        train_dataset=Sequences(read_tokens(order.data), workload.seq_len),
        callbacks=[TakingTurns(turns)],
    ).train()


if __name__ == "__main__":
    main(train)
