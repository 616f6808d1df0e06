# `make train` and `make test` do all their own set-up and reuse what is there.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
RUN ?= configs/train/demo.yaml
STRATEGY ?= fsdp2
PROCESSES ?= 2
SWEEP ?= cpu-quick

# A person's own `accelerate config` must not decide how these runs start.
export HF_HOME ?= $(CURDIR)/.venv/huggingface

.PHONY: train test test-long test-crash test-slurm test-machines soak-machines test-versions test-museum bench check data docs samples memory-errors overhead audit-overhead record-overhead recordings save-times clean

train: $(READY) data
	$(BIN)/toolkit train --strategy $(STRATEGY) --num-processes $(PROCESSES) --config $(RUN)
	$(BIN)/toolkit summary $(RUN)

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not long" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-long: $(READY)
	$(BIN)/pytest -m long

# Kills runs at random moments, three times each, and compares every end with an unbroken run's.
test-crash: $(READY)
	$(BIN)/pytest -m long tests/checkpoint/test_crashes.py

# launch/slurm.sbatch on a SLURM of several nodes on this machine. Debian's is installed where root can.
test-slurm: $(READY)
	command -v slurmctld > /dev/null || { apt-get update && DEBIAN_FRONTEND=noninteractive \
		apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge; }
	$(BIN)/pytest -m long tests/slurm

# Every fault of `toolkit rehearse`, and machines that come and go, on network namespaces; needs root.
test-machines: $(READY)
	$(BIN)/pytest -m long tests/rehearse

# Whole machines killed at random moments, and each next start compared bit for bit.
KILLS ?= 30
soak-machines: $(READY)
	KILLS=$(KILLS) $(BIN)/pytest -m long tests/rehearse/test_kills.py

# Releases that had a fault, each installed alone in front of this environment's packages, audited.
MUSEUM := deepspeed==0.18.8 accelerate==1.10.1
test-museum: $(READY)
	$(BIN)/python -m pip install --editable ".[bench]"
	set -e; for release in $(MUSEUM); do DS_BUILD_OPS=0 $(BIN)/python -m pip install --upgrade \
		--no-deps --no-build-isolation --target .venv/museum/$$release/site-packages $$release; done
	$(BIN)/pytest -m long tests/audit

# The tests of engines with the lowest and the highest version of each library that is reached into,
# in environments of their own.
LOWEST := $(shell sed -nE 's/.*"(accelerate|deepspeed)>=([0-9.]+),<.*/\1==\2/p' pyproject.toml)
test-versions: test-lowest test-highest
test-lowest: VERSIONS := $(LOWEST)
test-highest: VERSIONS := accelerate deepspeed
test-lowest test-highest: test-%:
	$(PYTHON) -m venv .venv/versions/$*
	.venv/versions/$*/bin/python -m pip install --upgrade pip
	.venv/versions/$*/bin/python -m pip install --editable ".[dev,deepspeed]" $(VERSIONS)
	.venv/versions/$*/bin/pytest -m "not long" tests/engines tests/distributed/test_engines.py \
		tests/distributed/test_faults.py tests/distributed/test_verify_command.py

# Time, traffic and memory of strategies and accumulation modes, and the report on them; resumes
# where it was stopped.
bench: $(READY)
	$(BIN)/toolkit bench sweep $(SWEEP) --out runs/benchmarks/$(SWEEP)
	$(BIN)/toolkit bench collectives runs/benchmarks/$(SWEEP)
	$(BIN)/toolkit bench report runs/benchmarks/$(SWEEP)

# The memory formula and its rivals against traced and measured steps.
memory-errors: $(READY)
	$(BIN)/python -m benchmarks.memory.error_table

# The toolkit's loop against plain PyTorch, DeepSpeed, Trainer and Fabric (`pip install lightning`);
# then the chunked loss against the plain one.
overhead: $(READY)
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.chunked_loss

# What `toolkit audit` costs a step that it watches.
audit-overhead: $(READY)
	$(BIN)/python -m benchmarks.audit_overhead

# What `training.record` costs a step of the demo run that it records.
record-overhead: $(READY) data
	$(BIN)/python -m benchmarks.record_overhead

# The recordings that docs/watch.md embeds, made anew.
recordings: $(READY) data
	$(BIN)/python -m docs.scripts.recordings

# How long a save of GPT-2 124M holds training up, beside the disk's own rate.
save-times: $(READY)
	$(BIN)/python -m benchmarks.checkpoint_save

# The site of docs/ in build/site, after what is generated in it; a broken link is an error.
docs: $(READY)
	$(BIN)/python -m docs.scripts
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Outputs in the documents that are no longer what is printed, rewritten in place by the tests that
# compare them. Numbers that may differ from run to run stay.
samples: $(READY)
	$(BIN)/pytest --rewrite-samples -m sample

data: $(READY)
	$(BIN)/toolkit data default --out data/default

check: $(READY)
	$(BIN)/toolkit check configs/train/*.yaml configs/accelerate/*.yaml

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --editable ".[dev,deepspeed]"
	touch $@

clean:
	rm -rf .venv runs data

.PHONY: plan-errors
plan-errors: $(READY)
	$(BIN)/python -m benchmarks.plan_errors

# On one GPU: updates, memory, speed, saves and a hang beside what is claimed, for seven minutes.
.PHONY: gpu-check
gpu-check: $(READY)
	$(BIN)/python -m benchmarks.gpu_check

# The learning rate at four numbers of tokens per step, with the square-root rule and without.
.PHONY: learning-rate
learning-rate: $(READY) data
	$(BIN)/python -m benchmarks.learning_rate
