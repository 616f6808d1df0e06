"""One rank of an audited command: what its first optimizer steps do, written to a file.

A step is a window of backward calls and the optimizer steps after them; it ends where the next
forward or backward begins. Everything here reads: nothing of the script's is changed, no random
number drawn, no collective issued. If something here fails the watch ends, and the file says why.
"""

import multiprocessing
import multiprocessing.util
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from toolkit.audit.ending import end_together
from toolkit.audit.loss_graph import read_loss
from toolkit.audit.patches import Patches
from toolkit.audit.their_code import their_line
from toolkit.audit.torch_internals import without_modes
from toolkit.audit.window import Window


def start_watch() -> None:
    """Watch this process as the environment asks; called once torch is imported."""
    Watch(
        Path(os.environ["TOOLKIT_AUDIT_OUT"]),
        steps=int(os.environ["TOOLKIT_AUDIT_STEPS"]),
        stops=os.environ.get("TOOLKIT_AUDIT_STOP") == "1",
    )


def _safely(note: Callable[..., None]) -> Callable[..., None]:
    """Note what the training thread does, and let an error of the note end the watch alone."""

    @wraps(note)
    def noted(self: "Watch", *arguments: Any, **settings: Any) -> None:
        if self.thread in (None, threading.get_ident()):
            self.attempt(note, self, *arguments, **settings)

    return noted


class Watch:
    """The watch of one process, from `import torch` to its last watched step."""

    def __init__(self, folder: Path, *, steps: int, stops: bool) -> None:
        self.folder, self.steps, self.stops = folder, steps, stops
        self.is_over = False
        self.thread: int | None = None
        self.process = os.getpid()
        self.problem: str | None = None
        self.depth = 0
        self.watch_s = 0.0
        self.window: Window | None = None
        self.done: list[dict[str, Any]] = []
        self.written = 0
        self.subject: Any = None
        self.facts: dict[str, Any] = {}
        self.optimizers: list[tuple[Any, str | None]] = []
        self.first_ties: set[tuple[str, ...]] = set()
        self.phase = "forward"
        self.patches = Patches()
        self._cover()
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        ]
        self._finish_at_exit()
        # A process that multiprocessing starts forgets what was to be done at its parent's exit.
        multiprocessing.util.register_after_fork(self, Watch._after_fork)

    def attempt(self, note: Callable[..., None], *arguments: Any, **settings: Any) -> None:
        """Call a note from whatever thread: with a GPU, backward runs in threads of its own."""
        if self.is_over or os.getpid() != self.process:
            return
        began = time.thread_time()
        try:
            with without_modes():
                note(*arguments, **settings)
        except Exception:
            self.problem = traceback.format_exc()
            self.finish()
        self.watch_s += time.thread_time() - began

    def _finish_at_exit(self) -> None:
        # Unlike `atexit` this is run by the children of multiprocessing as well.
        multiprocessing.util.Finalize(None, self._at_exit, exitpriority=0)

    def _after_fork(self) -> None:
        """Start anew in a child, which is a rank of its own unless its parent trains already."""
        is_worker = self.subject is not None
        self.process, self.thread = os.getpid(), None
        if is_worker:
            self.is_over = True
        else:
            self._finish_at_exit()

    def _cover(self) -> None:
        from torch.optim.lr_scheduler import LRScheduler

        self.patches.before(torch.optim.Optimizer, "__init__", self._note_optimizer)
        self.patches.before(LRScheduler, "step", self._note_schedule)
        self.patches.replace(torch.autograd, "backward", self._backward(torch.autograd.backward))
        clip = self._clip(torch.nn.utils.clip_grad_norm_)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            self.patches.replace(owner, "clip_grad_norm_", clip)
        with_norm = self._clip(torch.nn.utils.clip_grads_with_norm_)
        self.patches.replace(torch.nn.utils, "clip_grads_with_norm_", with_norm)

    def _backward(self, original: Any) -> Any:
        @wraps(original)
        def backward(tensors: Any, *arguments: Any, **settings: Any) -> Any:
            if self.depth or self.is_over:
                return original(tensors, *arguments, **settings)
            self._before_backward(tensors, *arguments, **settings)
            self.depth += 1
            try:
                return original(tensors, *arguments, **settings)
            finally:
                self.depth -= 1
                self._after_backward()

        return backward

    def _clip(self, original: Any) -> Any:
        @wraps(original)
        def clip(parameters: Any, max_norm: float, *arguments: Any, **settings: Any) -> Any:
            self._before_clip()
            norm = original(parameters, max_norm, *arguments, **settings)
            given = settings.get("total_norm", next(iter(arguments), None))
            self._after_clip(max_norm, given if norm is None else norm)
            return norm

        return clip

    @_safely
    def _note_optimizer(self, optimizer: Any, *arguments: Any, **settings: Any) -> None:
        self.optimizers.append((weakref.ref(optimizer), their_line()))
        if len(self.optimizers) == 1:
            from toolkit.audit.models import find_roots, ties_of

            self.first_ties = set(ties_of(find_roots()))

    @_safely
    def _note_schedule(self, scheduler: Any, *arguments: Any, **settings: Any) -> None:
        # A scheduler's own first step is in its constructor, from epoch -1 to 0.
        if self.window is not None and scheduler.last_epoch >= 0:
            self.window.note_schedule(id(scheduler), their_line())

    @_safely
    def _before_backward(self, tensors: Any, gradient: Any = None, *_: Any, **more: Any) -> None:
        gradient = more.get("grad_tensors", gradient)
        self._end_window()
        if self.is_over:
            return
        if self.subject is None:
            from toolkit.audit.models import fsdp1
            from toolkit.audit.subject import Subject

            self.thread = threading.get_ident()
            self.subject = Subject(self._heard, self._before_forward, self.attempt)
            if (wrapper := fsdp1()) is not None:
                clip = self._clip(wrapper.clip_grad_norm_)
                self.patches.replace(wrapper, "clip_grad_norm_", clip)
        if self.window is None:
            self.window = Window(self.subject)
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        outer = gradient if isinstance(gradient, torch.Tensor | None) else gradient[0]
        loss = read_loss(first, outer) if isinstance(first, torch.Tensor) else None
        self.window.begin_micro_step(loss, their_line())
        self.phase = "backward"

    @_safely
    def _after_backward(self) -> None:
        if self.window is not None:
            self.window.end_micro_step()

    @_safely
    def _before_forward(self, inputs: Any) -> None:
        if torch.is_grad_enabled() and not self.depth:
            self._end_window()
            self.phase = "forward"
            if not self.is_over:
                self.subject.note_batch(inputs)

    def _heard(self, collective: Any) -> None:
        if self.window is not None:
            self.window.hear(self.phase, collective)
        elif self.subject is not None:
            self.subject.hear_forward(collective)

    @_safely
    def _before_clip(self) -> None:
        if self.window is not None:
            self.window.take_applied()

    @_safely
    def _after_clip(self, max_norm: Any, norm: Any) -> None:
        if self.window is not None:
            self.window.note_clip(max_norm, norm, their_line())

    @_safely
    def _before_step(self, *_: Any) -> None:
        self.phase = "step"
        if self.window is not None:
            self.window.take_applied()

    @_safely
    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.window is not None:
            self.window.take_applied()
            self.window.has_stepped = True
            self.window.stepped.add(id(optimizer))
            self.window.step_line = self.window.step_line or their_line()
            if not self.facts:
                self.facts = self._facts()

    def _end_window(self) -> None:
        if self.window is None or not self.window.has_stepped:
            return
        number = len(self.done) + 1
        is_last = number == self.steps
        # They read every parameter once, so not at every step.
        self.done.append(self.window.describe(with_fingerprints=is_last or number == 1))
        self.window = None
        self.write()
        if is_last:
            self.finish()
            if self.stops:
                end_together(self.folder)

    def write(self) -> None:
        """Add what was not yet written, a line each; a broken last line is a process that died."""
        import json

        report = self._describe()
        lines = [json.dumps({"step": step}) for step in self.done[self.written :]]
        self.written = len(self.done)
        with (self.folder / f"{self.process}.jsonl").open("a") as file:
            file.write("".join(f"{line}\n" for line in [json.dumps(report), *lines]))

    def _facts(self) -> dict[str, Any]:
        """Return what holds for all steps, while models, optimizers and process group are there."""
        from toolkit.audit.subject import describe_process

        if self.subject is None:
            return describe_process()
        live = [(ref(), line) for ref, line in self.optimizers if ref() is not None]
        return {**describe_process(), **self.subject.describe(live, self.first_ties)}

    def _describe(self) -> dict[str, Any]:
        from toolkit.audit.subject import peak_memory_bytes

        return {
            **(self.facts or self._facts()),
            "peak_memory_bytes": peak_memory_bytes(),
            "problem": self.problem,
            "watch_s": self.watch_s,
        }

    def finish(self) -> None:
        """Take everything off again."""
        self.is_over = True
        self.patches.remove()
        for handle in self._handles:
            handle.remove()
        if self.subject is not None:
            self.subject.remove()
        if self.problem is not None:
            self.write()

    def _is_idle_rank(self) -> bool:
        is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        return is_launched and multiprocessing.parent_process() is None

    def _at_exit(self) -> None:
        """Write the last step of a script that ends before the watch does."""
        if self.is_over or os.getpid() != self.process:
            return
        try:
            self.stops = False
            if self.window is not None and self.window.has_stepped:
                self._end_window()
            elif self.subject is not None or self._is_idle_rank():
                self.write()
        except Exception:
            traceback.print_exc()
