"""What is found out about the model between steps: validation loss and a sample of text."""

from collections.abc import Sequence
from dataclasses import asdict

from toolkit.data.batches import eval_batches
from toolkit.data.vocabulary import END_OF_TEXT, build_vocabulary
from toolkit.model.sizes import GPT2_VOCAB_SIZE
from toolkit.training.build import Run
from toolkit.training.evaluate import evaluate
from toolkit.training.metrics import eval_line
from toolkit.training.report import RunReport
from toolkit.training.sample import sample_tokens
from toolkit.training.stop import Lookout, StopRequest


class Validation:
    """The evaluations and samples of a run, as its configuration asks; its calls are collectives.

    Args:
        run: whose model is looked at.
        report: where what is found goes.
        stop: a signal ends an evaluation between two batches, and a sample between two tokens.
    """

    def __init__(self, run: Run, report: RunReport, stop: StopRequest) -> None:
        self.run = run
        self.report = report
        self.stop = stop

    @property
    def kinds(self) -> list[str]:
        """What is recorded at each evaluation: `eval`, `sample`, both or nothing."""
        is_wanted = {
            "eval": self.run.val is not None,
            "sample": self.run.config.training.sample_tokens > 0,
        }
        return [kind for kind, wanted in is_wanted.items() if wanted]

    def missing(self, step: int) -> list[str]:
        """Return what the run was ended before it could record at this step; all ranks alike."""
        if not self.kinds:
            return []
        recorded = self.report.recorded_at(step)
        # Only rank 0 has the records.
        first, *_ = self.run.engine.ranks.gather_numbers(
            [kind not in recorded for kind in self.kinds]
        )
        return [kind for kind, is_missing in zip(self.kinds, first, strict=True) if is_missing]

    def record(self, step: int, kinds: Sequence[str]) -> None:
        """Evaluate, sample, or both.

        Raises:
            Stopped: a rank was asked to end.
        """
        look = Lookout(self.run.engine.ranks.gather_numbers, self.stop)
        if "eval" in kinds:
            self._evaluate(step, look)
        if "sample" in kinds:
            text = self._sample(look)
            record = {"kind": "sample", "step": step, "text": text}
            self.report.tell(record, f"sample {step:>5} | {text!r}")

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
        self.report.tell(record, eval_line(record, steps=self.run.config.training.steps))

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
