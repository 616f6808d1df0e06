"""One traced configuration of the error table, in a process of its own: JSON in, JSON out."""

import json
import sys

from benchmarks.memory.configurations import Configuration
from toolkit.verify.traced import trace_row


def main(row: str) -> None:
    """Print the peak and its parts; the trace does not separate the loss from activations."""
    configuration = Configuration.from_row(json.loads(row))
    traced = trace_row(configuration.settings(device="cuda"))
    parts = {part: size for part, size in traced.parts.items() if part not in ("loss", "other")}
    print(json.dumps({"peak": traced.peak, **parts}))


if __name__ == "__main__":
    main(sys.argv[1])
