"""A page to look at: data parallelism phase by phase, recorded in real processes."""
