"""One GPT-2 training run, from one process to many, learning the same thing each time."""

__version__ = "0.1.0"
