"""One machine of a run, with a shell in the place of a launcher that ends once a file is there."""

import sys
import time
from pathlib import Path

from toolkit.launch import elastic, membership
from toolkit.launch.elastic import Elastic
from toolkit.launch.membership import Membership, Round

TRAIN = """
trap 'exit 75' TERM
echo "trains round $0 rank $1 of $2"
while [ ! -e "$3" ]; do sleep 0.05; done
"""


def main(folder: Path) -> int:
    membership.BEAT_S, membership.LOST_S = 0.05, 1.0
    elastic.SETTLE_S, elastic._LOOK_EVERY_S = 0.3, 0.05

    def command(rank: int, current: Round) -> list[str]:
        numbers = map(str, (current.number, rank, len(current.addresses)))
        return ["sh", "-c", TRAIN, *numbers, str(folder / "done")]

    return Elastic(
        Membership(folder / "machines", "127.0.0.1"),
        least=1,
        most=3,
        # Three cannot share the batch.
        usable=lambda machines: min(machines, 2),
        command=command,
        saved=time.monotonic,
        recorded=time.monotonic,
        log=lambda line: print(line, flush=True),
    ).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
