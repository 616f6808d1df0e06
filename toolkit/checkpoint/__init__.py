"""A state on disk that any engine can resume from."""
