"""Run scripts one after another, most on two ranks, forked from a process that has all imported.

`warm.py OUT SCRIPT...` writes the ranks' reports to OUT/<name>/, and their output beside them.
What `sitecustomize` does in a fresh process is done by hand here.
"""

import atexit
import gc
import importlib
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path

RANKS = {"single": 1, "fsdp2_hybrid_deferred": 4}
"""Those of scripts that do not run on two."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_rank(script: Path, out: Path, rank: int, world_size: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TOOLKIT_AUDIT_OUT=str(out),
        TOOLKIT_AUDIT_STEPS="3",
    )
    output = os.open(out / f"{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from toolkit.audit.watch import start_watch

    code = 0
    try:
        start_watch()
        sys.argv = [str(script)]
        runpy.run_path(str(script), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def run_script(script: Path, out: Path, world_size: int) -> int:
    out.mkdir(parents=True)
    port = free_port()
    ranks = []
    for rank in range(world_size):
        if (process := os.fork()) == 0:
            run_rank(script, out, rank, world_size, port)
        ranks.append(process)
    return max(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks)


def main(out: Path, scripts: list[Path]) -> None:
    import accelerate  # noqa: F401
    import torch._dynamo  # what DDP imports
    import torch.distributed.fsdp  # noqa: F401

    import toolkit.audit.subject  # noqa: F401

    text = "".join(script.read_text() for script in scripts)
    for library in ("deepspeed", "transformers", "lightning.fabric"):
        if f"{library} import" in text or f"import {library}" in text:
            importlib.import_module(library)
    gc.freeze()
    sys.path.insert(0, str(Path(__file__).parent))
    for script in scripts:
        code = run_script(script, out / script.stem, RANKS.get(script.stem, 2))
        (out / script.stem / "code").write_text(str(code))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
