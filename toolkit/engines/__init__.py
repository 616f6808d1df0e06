"""The engines: everything that knows DDP, FSDP2 or DeepSpeed."""
