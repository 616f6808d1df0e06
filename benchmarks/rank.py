"""One launched process of a case: its end of the connection to the driver."""

import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.group import Order
from toolkit.errors import ToolkitError
from toolkit.launch.ownership import follow

Kind = TypeVar("Kind", bound=Order)


def serve(kind: type[Kind], act: Callable[[Kind, Connection], None]) -> None:
    """Do what the order file on the command line asks; the driver going away ends it.

    An answer to the driver is a pair: what went wrong, in a sentence, or None; and the result. The
    first one is the rank, when it is ready.
    """
    follow(signal.SIGKILL)
    # What the launcher sends once the driver is gone.
    signal.signal(signal.SIGUSR1, _end_of_input)
    order = kind.model_validate_json(Path(sys.argv[1]).read_text())
    with Client(order.address, family="AF_UNIX") as driver:
        try:
            act(order, driver)
        except (EOFError, BrokenPipeError):
            # The driver is gone, and nobody else is left to clear up after it.
            shutil.rmtree(order.folder, ignore_errors=True)
        except Exception as error:
            with suppress(OSError):
                driver.send((_sentence(error), None))
            raise


def _end_of_input(number: int, frame: Any) -> None:
    raise EOFError


def _sentence(error: Exception) -> str:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return first if isinstance(error, ToolkitError) else f"{type(error).__name__}: {first}"
