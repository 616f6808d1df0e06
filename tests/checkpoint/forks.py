"""Many starts of the main job for the price of one import: each is a fork of this process.

Reads one JSON object a line, `{"arguments", "environment", "log", "kill_after_s"}`, and answers
each with the wait status of the child.
"""

import json
import os
import signal
import sys
import time
from typing import Any

import accelerate  # noqa: F401
import deepspeed  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.fsdp

from tests.faulty import faulty_main


def start(order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        os.environ.update(order["environment"])
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = 1
        try:
            code = faulty_main(order["arguments"])
        finally:
            sys.stdout.flush()
            os._exit(code)
    if order.get("kill_after_s") is not None:
        time.sleep(order["kill_after_s"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(start(json.loads(line))), flush=True)
