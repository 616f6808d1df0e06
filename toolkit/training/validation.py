"""What is recorded of the model between steps: validation loss and a sample of text."""

from collections.abc import Sequence
from dataclasses import asdict

from toolkit.data.batches import eval_batches
from toolkit.data.vocabulary import END_OF_TEXT, build_vocabulary
from toolkit.model.sizes import GPT2_VOCAB_SIZE
from toolkit.training.build import Run
from toolkit.training.callback import Callback, Progress
from toolkit.training.evaluate import evaluate
from toolkit.training.metrics import eval_line
from toolkit.training.report import RunReport
from toolkit.training.sample import sample_tokens
from toolkit.training.schedule import is_due
from toolkit.training.stop import Lookout, StopRequest


class Validation(Callback):
    """The evaluations and samples of a run, as its configuration asks; its calls are collectives.

    A signal ends an evaluation between two batches, and a sample between two tokens.
    """

    def __init__(self, run: Run, report: RunReport, stop: StopRequest) -> None:
        self.run = run
        self.report = report
        self.stop = stop
        is_wanted = {"eval": run.val is not None, "sample": run.config.training.sample_tokens > 0}
        self._kinds = [kind for kind, wanted in is_wanted.items() if wanted]

    def due(self, step: int) -> list[str]:
        """Return what is to be recorded after a step: `eval`, `sample`, both or nothing."""
        training = self.run.config.training
        now = is_due(step, training.eval_every, last=training.last_step)
        return self._kinds if step > 0 and now else []

    def at_start(self, progress: Progress) -> None:
        """Record what the start before was ended in: the evaluation of its last step.

        Raises:
            Stopped: a rank was asked to end.
        """
        last = self.run.config.training.last_step
        if missing := self._missing(progress.step):
            self._record(progress.step, missing)
        elif progress.step >= last:
            self.report.log(f"nothing to do: {progress.step} of {last} steps are done")

    def after_step(self, progress: Progress, numbers: Sequence[float]) -> None:
        """Evaluate and sample when it is time.

        Raises:
            Stopped: a rank was asked to end.
        """
        self._record(progress.step, self.due(progress.step))

    def _missing(self, step: int) -> list[str]:
        """Return what the run was ended before it could record at this step; all ranks alike."""
        kinds = self.due(step)
        if not kinds:
            return []
        recorded = self.report.recorded_at(step)
        # Only rank 0 has the records.
        first, *_ = self.run.engine.ranks.gather_numbers([kind not in recorded for kind in kinds])
        return [kind for kind, is_missing in zip(kinds, first, strict=True) if is_missing]

    def _record(self, step: int, kinds: Sequence[str]) -> None:
        look = Lookout(self.run.engine.ranks.gather_numbers, self.stop)
        if "eval" in kinds:
            self._evaluate(step, look)
        if "sample" in kinds:
            text = self._sample(look)
            record = {"kind": "sample", "step": step, "text": text}
            self.report.report(record, f"sample {step:>5} | {text!r}")

    def _evaluate(self, step: int, look: Lookout) -> None:
        assert self.run.val is not None
        batches = eval_batches(
            self.run.val,
            micro_batch_size=self.run.plan.micro_batch_size,
            world_size=self.run.engine.world_size,
            rank=self.run.engine.rank,
            max_sequences=self.run.config.training.eval_sequences,
        )
        found = evaluate(self.run.engine, batches, look)
        record = {"kind": "eval", "step": step, **asdict(found)}
        self.report.report(record, eval_line(record, steps=self.run.config.training.steps))

    def _sample(self, look: Lookout) -> str:
        tokens = sample_tokens(
            self.run.engine,
            look,
            start=min(END_OF_TEXT, self.run.config.model.vocab_size - 1),
            length=self.run.config.training.sample_tokens,
            block_size=self.run.config.model.block_size,
            seed=self.run.config.seed,
        )
        return build_vocabulary().decode([token for token in tokens if token < GPT2_VOCAB_SIZE])
