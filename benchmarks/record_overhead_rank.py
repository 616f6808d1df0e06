"""One process of `benchmarks.record_overhead`."""

import sys
from pathlib import Path

from benchmarks.record_overhead import run_rank
from toolkit.launch.exit_code import end_process

if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]))
    end_process(0)
