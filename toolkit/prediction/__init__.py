"""How long a step takes on GPUs, and which configuration that fits is the fastest."""
