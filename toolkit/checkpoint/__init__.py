"""A state on disk that any engine can carry on from."""
