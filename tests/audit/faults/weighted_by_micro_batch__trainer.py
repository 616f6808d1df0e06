"""Trainer divides a mean loss by the micro-steps, whatever their targets (transformers 34191)."""

import tempfile

from trainer_parts import Texts, WithLoss
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=3,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(WithLoss(), arguments, train_dataset=Texts(padded=True))
trainer.train()  # FAULT
