"""All that hangs on the loop of a run, in the order in which it is called."""

from collections.abc import Sequence
from pathlib import Path

from toolkit.checkpoint.copies import remove_stale
from toolkit.checkpoint.peer_copy import PeerCopy
from toolkit.checkpoint.store import CheckpointStore
from toolkit.program.readers.peak import Peak
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Log
from toolkit.training.checks import FirstStepCheck, ReplicaCheck
from toolkit.training.health import Health
from toolkit.training.loop import Loop
from toolkit.training.memory import MemoryPeak
from toolkit.training.peer_copies import PeerCopies
from toolkit.training.preemption import Preemption
from toolkit.training.profile import Profile
from toolkit.training.record import Record
from toolkit.training.report import RunReport
from toolkit.training.resume import resume
from toolkit.training.roll_back import RollBack
from toolkit.training.saving import Saving
from toolkit.training.step_time import StepTimes
from toolkit.training.stop import StopRequest
from toolkit.training.stragglers import Stragglers
from toolkit.training.validation import Validation


def build_loop(
    run: Run,
    folder: Path,
    log: Log,
    *,
    estimate: Peak,
    stop: StopRequest,
    strict: bool = False,
    others: Sequence[Callback] = (),
) -> tuple[Loop, RunReport]:
    """Resume a run from the newest checkpoint in its folder, and hang on it what its keys ask for.

    Args:
        estimate: of the memory at the peak, to be compared with what is measured.
        stop: whether a signal has asked for the end.
        strict: refuse to skip a damaged checkpoint.
        others: called after those of the run itself.

    Raises:
        UntrustedError, UsageError: as `resume`.
    """
    store = CheckpointStore(folder / "checkpoints")
    copies = _peer_copies(run, folder, store, log)
    progress = resume(run, store, log, strict=strict)
    memory = _memory_peak(run, folder, log, estimate)
    health = Health(run.config.training)
    times = StepTimes(run, log)
    report = RunReport(run, folder, log, memory=memory, times=times, last_step=progress.step)
    saving = Saving(run, store, log, saved_step=progress.step)
    validation = Validation(run, report, stop)
    callbacks = [
        FirstStepCheck(run),
        memory,
        times,
        Profile(folder / "profile", run.engine, run.config.training.profile, log),
        Record(folder, run.engine, run.config.training.record, log),
        health,
        report,
        RollBack(run, saving, health, report, log),
        Stragglers(run.engine, log),
        ReplicaCheck(run),
        # Before the evaluation, which may take long, and in which the run may be killed.
        saving,
        *copies,
        # After the state is saved; where an evaluation is still due, the next start does it.
        Preemption(run.config.training, stop, validation),
        validation,
        *others,
    ]
    return Loop(run, progress, callbacks), report


def _memory_peak(run: Run, folder: Path, log: Log, estimate: Peak) -> MemoryPeak:
    first = run.engine.rank == 0
    return MemoryPeak(run.engine.device, folder if first else None, log, estimate=estimate)


def _peer_copies(run: Run, folder: Path, store: CheckpointStore, log: Log) -> list[Callback]:
    """Save what an earlier start left in memory; return what copies, if anything is to."""
    training = run.config.training
    if run.engine.launched.local_rank == 0:
        remove_stale()
    if not training.peer_copy_every:
        return []
    copy = PeerCopy(run.engine, folder)
    step = copy.save(store, keep_last=training.keep_last)
    if step is not None:
        log(f"saved step {step} from the copies in memory")
    return [PeerCopies(run, copy, log)]
