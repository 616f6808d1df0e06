"""A page to look at: data parallelism phase by phase, and the replay of a run's recorded steps."""
