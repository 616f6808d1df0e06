"""Hear of every collective of this process, without a dispatch mode around the script's operators.

A kernel in front of each collective operator, at its autograd key, notes the call and hands it on
(`torch.library`); all other operators are untouched. Collectives that DTensor issues inside an
operation of its own are below that key and not heard of, such as those of a sharded norm.
"""

from collections.abc import Callable
from typing import Any

import torch

from toolkit.engines.collectives import OPERATORS
from toolkit.engines.torch_internals import below_autograd, take_back

_KEYS = ("AutogradCPU", "AutogradCUDA")


class CollectiveListener:
    """Calls `heard` with each collective until `remove`, from the thread that issues it.

    Args:
        heard: called with the operator, its arguments and its result, as `read_collective` is.
    """

    def __init__(self, heard: Callable[[Any, Any, Any], None]) -> None:
        self._heard = heard
        self._is_inside = False
        self._libraries: list[torch.library.Library] = []
        for key in _KEYS:
            for namespace in ("c10d", "_c10d_functional"):
                library = torch.library.Library(namespace, "IMPL", key)
                self._libraries.append(library)
                for name in OPERATORS:
                    self._cover(library, namespace, name)

    def _cover(self, library: torch.library.Library, namespace: str, name: str) -> None:
        owner, _, operator = name.partition("::")
        packet: Any = getattr(getattr(torch.ops, namespace), operator, None)
        for overload in packet.overloads() if packet and owner == namespace else ():
            full = operator if overload == "default" else f"{operator}.{overload}"
            library.impl(full, self._kernel(getattr(packet, overload)), with_keyset=True)

    def _kernel(self, operator: Any) -> Any:
        def kernel(keyset: Any, *arguments: Any, **settings: Any) -> Any:
            outer, self._is_inside = not self._is_inside, True
            try:
                with below_autograd():
                    result = operator(*arguments, **settings)
            finally:
                self._is_inside = not outer
            if outer and not torch.compiler.is_compiling():
                self._heard(operator, arguments, result)
            return result

        return kernel

    def remove(self) -> None:
        """Take the kernels off again."""
        for library in self._libraries:
            take_back(library)
        self._libraries.clear()
