"""transformers' own GPT-2 and Trainer, on texts of unequal length."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, eos_token_id=0)
)
texts = []
for number in range(48):
    tokens = torch.randint(1, 64, (16,))
    texts.append({"input_ids": tokens, "labels": tokens.clone()})
    texts[-1]["labels"][16 - number % 9 :] = -100
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=4,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
)
Trainer(model, arguments, train_dataset=texts).train()
