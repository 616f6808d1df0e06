"""Check on one GPU what the project claims, most valuable first, within some minutes.

    python -m benchmarks.gpu_check [--device cpu] [--out runs/gpu_check] [--budget-s 420]

Every row is in `gpu_check.json` and `gpu_check.md` of the folder as soon as it is found, so it can
be stopped at any moment. `--device cpu` rehearses the same lines at tiny sizes.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.gpu_check.check import STAGES, Check
from benchmarks.gpu_check.scale import scale_for
from toolkit.home import expand_words


def main() -> int:
    """Run the stages; return 0, 1 if something is not as claimed, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"))
    parser.add_argument("--budget-s", type=float, default=420.0, help="nothing begins after it")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    asked = parser.parse_args(expand_words(sys.argv[1:]))
    import torch

    if asked.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(
            "error: PyTorch sees no GPU on this machine, so there is nothing to check; "
            "--device cpu rehearses the check\n"
        )
        return 2
    check = Check(scale_for(asked.device), asked.out, budget_s=asked.budget_s)
    return check.run(asked.stages)


if __name__ == "__main__":
    sys.exit(main())
