"""What other programs call the keys of a run configuration.

The names are those of nanoGPT's and llm.c's training scripts, transformers' `TrainingArguments` and
`GPT2Config`, torchtitan's `JobConfig`, Lightning's `Trainer`, Megatron-LM's arguments and
DeepSpeed's configuration.
"""

_NAMES = {
    "model": "transformer gpt",
    "model.preset": "flavor model_name model_type model.name",
    "model.n_layer": "n_layers num_layers num_hidden_layers",
    "model.n_head": "n_heads num_heads num_attention_heads",
    "model.n_embd": "d_model hidden_size",
    "model.block_size": "context_length context_size n_positions n_ctx max_position_embeddings",
    "model.vocab_size": "padded_vocab_size",
    "model.dropout": "resid_pdrop attn_pdrop embd_pdrop hidden_dropout attention_dropout",
    "model.activation_checkpointing": "gradient_checkpointing recompute recompute_activations "
    "activation_checkpoint activation_checkpoint.mode model.checkpointing",
    "model.compile": "torch_compile compile.enable",
    "data": "dataloader",
    "data.train": "dataset dataset_name dataset_path data_path data_dir train_files input_bin",
    "data.val": "val_data val_files eval_data input_val_bin",
    "data.seq_len": "sequence_length seq_length max_seq_len max_seq_length",
    "batch.tokens_per_step": "global_batch_size total_batch_size train_batch_size "
    "effective_batch_size gradient_accumulation_steps grad_accum_steps grad_accumulation_steps "
    "gradient_accumulation accumulate_grad_batches",
    "batch.micro_batch_size": "batch_size local_batch_size device_batch_size eval_batch_size "
    "train_micro_batch_size_per_gpu per_device_train_batch_size per_device_eval_batch_size",
    "optimizer": "lr_scheduler scheduler",
    "optimizer.name": "optim optimizer_type",
    "optimizer.lr": "learning_rate max_lr peak_lr base_lr",
    "optimizer.min_lr": "min_learning_rate min_lr_factor learning_rate_decay_frac",
    "optimizer.warmup_steps": "warmup warmup_iters warmup_ratio num_warmup_steps lr_warmup_iters",
    "optimizer.betas": "beta1 beta2 adam_beta1 adam_beta2",
    "optimizer.grad_clip": "max_grad_norm max_norm clip_grad clip_grad_norm gradient_clipping "
    "gradient_clip_val",
    "training": "trainer",
    "training.steps": "max_steps max_iters num_iterations num_steps total_steps num_train_steps "
    "train_iters lr_decay_iters num_train_epochs max_epochs epochs",
    "training.stop_at": "stop_after",
    "training.log_every": "log_interval logging_steps log_freq print_every",
    "training.profile": "profiler profiling profile_steps enable_profiling",
    "training.eval_every": "eval_interval eval_steps eval_freq val_interval val_loss_every "
    "val_check_interval validation.freq",
    "training.eval_sequences": "eval_iters val_max_steps limit_val_batches validation.steps",
    "training.sample_tokens": "sample_every",
    "training.checkpoint_every": "save_every save_steps save_interval save_freq checkpoint_steps "
    "checkpoint_interval checkpointing_steps always_save_checkpoint checkpoint checkpoint.interval",
    "training.keep_last": "max_checkpoints save_total_limit keep_latest_k max_to_keep save_top_k",
    "training.async_save": "async async_mode",
    "training.timeout_s": "timeout ddp_timeout",
    "training.tracker_project": "wandb_project project project_name",
    "training.trackers": "report_to log_with logger wandb_log enable_wandb enable_tensorboard",
    "precision": "dtype bf16 fp16 fp32 amp mixed_precision mixed_precision_param torch_dtype",
    "seed": "random_seed data_seed manual_seed",
    "output_dir": "output out_dir dump_folder save_dir checkpoint.folder",
    "run_name": "experiment_name wandb_run_name run.name",
}

SYNONYMS = {name: key for key, names in _NAMES.items() for name in names.split()}
"""Other program's name to the right key or section; one with a dot counts in its section alone."""
