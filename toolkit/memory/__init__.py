"""What a step of training holds in memory: estimated, traced and measured."""
