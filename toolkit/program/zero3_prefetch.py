"""What DeepSpeed 0.19.8's stage 3 gathers ahead, and when it gives it back.

DeepSpeed records the modules of one forward and backward pass, and from the next pass on looks
ahead in that record (`runtime/zero/partitioned_param_coordinator.py`). At each visit of a module,
of containers and dropout too,

    fetch      its own parameters are gathered if they are not there, and waited for
    prefetch   those of the modules to come are gathered, until they exceed the prefetch bucket
               or what may live at one time, the last one wholly
    release    when it has computed, its parameters are given back, unless they come again within
               the reuse distance, or a prefetch has passed over them since they were there

all of which follows from the sizes alone. A parameter gathered by itself arrives in its own
storage, padded to equal slices; several at once arrive in one flat buffer, are copied out of it
when the first is needed, and the buffer stays until the last one is. One rank gathers nothing.
A gather goes on beside the computation, over gloo too, until one of its parameters is needed.

Small parameters (`persistent`) are there between the steps, but not yet in the first one. What was
released at a place in the record is decided there once for the whole run (`functools.lru_cache`);
with several micro-steps that is the second pass of the first step.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from toolkit.model.sizes import ModelSizes
from toolkit.model.tensors import model_tensors
from toolkit.program.events import Collective, Program
from toolkit.program.zero3_record import EMBEDDINGS_BACKWARD, WPE, WTE, Key, record_of


class Flat:
    """What several parameters have been gathered into."""

    def __init__(self, size: int, waiting: list[int]) -> None:
        self.size = size
        self.waiting = set(waiting)
        self.copied = False


class Coordinator:
    """Gathers and releases along the record, and writes both down in a program.

    Args:
        zero: DeepSpeed's `zero_optimization`, sizes in elements.
        shards: ranks that each parameter is cut over.
        width: bytes per element.
        recomputes: whether activations are checkpointed.
        decided: what is released at a place in the record, where that has been decided before.
    """

    def __init__(
        self,
        sizes: ModelSizes,
        program: Program,
        zero: dict[str, Any],
        *,
        shards: int,
        width: int,
        recomputes: bool,
        decided: dict[int, set[int]],
    ) -> None:
        self.program = program
        self.shards = shards
        self.width = width
        self.decided = decided
        self.elements = [tensor.elements for tensor in model_tensors(sizes)]
        self.record = record_of(sizes.n_layer, recomputes=recomputes)
        most = zero["stage3_param_persistence_threshold"]
        self.persistent = [p for p, elements in enumerate(self.elements) if elements <= most]
        self.bucket: int = zero["stage3_prefetch_bucket_size"]
        self.most_live: int = zero["stage3_max_live_parameters"]
        self.reuse_distance: int = zero["stage3_max_reuse_distance"]
        self.held: dict[int, int] = {}
        self.in_flight: dict[int, Flat] = {}
        self.gathering: dict[int, Collective] = {}
        self.start_pass()

    def start_pass(self) -> None:
        """Go back to the start of the record; what was prefetched and not used is given back."""
        unused = list(self.in_flight)
        self._wait_for_all()
        self._give_back_all(unused)
        self.position = 0
        self.live = 0
        self.queue = deque(
            (parameter, position)
            for position, visit in enumerate(self.record)
            for parameter in visit.parameters
        )
        self.fetched_for: dict[int, int] = {}

    def enter(self, key: Key) -> None:
        """Visit all modules up to this one."""
        while True:
            visit = self.record[self.position]
            self._fetch(visit.parameters)
            self.position += 1
            if visit.key == key:
                return

    def leave(self) -> None:
        """Release the parameters of the module that was entered last.

        The embeddings' inputs have no gradient; theirs are released after the backward pass.
        """
        visit = self.record[self.position - 1]
        if visit.key in EMBEDDINGS_BACKWARD:
            return
        if self.position not in self.decided:
            self.decided[self.position] = self._to_release(visit.parameters)
        self._give_back_all(self.decided[self.position])

    def end_pass(self) -> None:
        """Release the embeddings."""
        self._give_back_all({WTE, WPE} - set(self.persistent))

    def partition(self) -> None:
        """Give back everything, as the optimizer step does first."""
        self._wait_for_all()
        self._give_back_all(list(self.held))

    def gather_persistent(self) -> None:
        """Gather the small parameters, as the optimizer step does last."""
        for parameter in self.persistent:
            self._communicate([parameter], blocks=True)
        self.hold_persistent()

    def hold_persistent(self) -> None:
        """Have the small parameters there, as they are between two steps."""
        for parameter in self.persistent:
            self._hold(parameter, self._padded(parameter))

    def rehearse(self) -> None:
        """Go through the whole record once."""
        for visit in self.record:
            if visit.key is not None:
                self.enter(visit.key)
                self.leave()

    def _fetch(self, parameters: tuple[int, ...]) -> None:
        if missing := [p for p in parameters if not self._is_there(p)]:
            self._gather(missing)
        for parameter in parameters:
            self._wait(parameter)
        for _ in [p for p in parameters if self.fetched_for.get(p, -1) < self.position]:
            parameter, used_at = self.queue.popleft()
            self.fetched_for[parameter] = used_at
        most = min(self.most_live - self.live, self.bucket)
        if most > 0:
            self._prefetch(most)

    def _prefetch(self, most: int) -> None:
        chosen: list[int] = []
        size = 0
        while self.queue and size < most:
            parameter, used_at = self.queue.popleft()
            self.fetched_for[parameter] = max(self.fetched_for.get(parameter, -1), used_at)
            if not self._is_there(parameter) and parameter not in chosen:
                chosen.append(parameter)
                size += self.elements[parameter]
        if chosen:
            self._gather(chosen)

    def _is_there(self, parameter: int) -> bool:
        return parameter in self.in_flight or parameter in self.held

    def _gather(self, parameters: list[int]) -> None:
        self.live += sum(self.elements[p] for p in parameters)
        sizes = [self._padded(p) for p in parameters]
        if gathering := self._communicate(parameters, blocks=False):
            self.gathering |= dict.fromkeys(parameters, gathering)
        if len(parameters) == 1:
            self._hold(parameters[0], sizes[0])
            return
        flat = Flat(sum(sizes), parameters)
        self.program.alloc("communication", flat.size)
        self.in_flight |= dict.fromkeys(parameters, flat)

    def _communicate(self, parameters: list[int], *, blocks: bool) -> Collective | None:
        size = sum(self._padded(parameter) for parameter in parameters)
        if not size:
            return None
        gather = Collective("all_gather", size, self.width, "world", blocks)
        return self.program.communicate(gather)

    def _padded(self, parameter: int) -> int:
        if self.shards == 1:
            return 0
        return self.width * -(-self.elements[parameter] // self.shards) * self.shards

    def _hold(self, parameter: int, size: int) -> None:
        self.held[parameter] = size
        self.program.alloc("parameters", size)

    def _wait(self, parameter: int) -> None:
        if gathering := self.gathering.pop(parameter, None):
            self.program.wait(gathering)
        flat = self.in_flight.pop(parameter, None)
        if flat is None:
            return
        if not flat.copied:
            for other in sorted(flat.waiting):
                self._hold(other, self.width * self.elements[other] if self.shards > 1 else 0)
            flat.copied = True
        flat.waiting.remove(parameter)
        if not flat.waiting:
            self.program.free("communication", flat.size)

    def _wait_for_all(self) -> None:
        for parameter in list(self.in_flight | self.gathering):
            self._wait(parameter)

    def _give_back_all(self, parameters: Iterable[int]) -> None:
        for parameter in self.held.keys() & set(parameters):
            self._give_back(parameter)

    def _give_back(self, parameter: int) -> None:
        self.program.free("parameters", self.held.pop(parameter))
        self.live -= self.elements[parameter]

    def _to_release(self, parameters: tuple[int, ...]) -> set[int]:
        position = self.position
        gathered = set(parameters).difference(self.persistent)
        done = {p for p in gathered if self.fetched_for[p] <= position}
        passed = 0
        while done and passed < self.reuse_distance and position < len(self.record):
            for parameter in self.record[position].parameters:
                done.discard(parameter)
                passed += self.elements[parameter]
            position += 1
        return done
