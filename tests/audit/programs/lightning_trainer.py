"""Lightning's own Trainer, demonstration model and data."""

from lightning import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    accumulate_grad_batches=2,
    max_epochs=1,
    limit_train_batches=16,
    limit_val_batches=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(BoringModel())
