"""Text to token shards: `toolkit data prepare`."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from toolkit.data.durable import write_durably
from toolkit.data.encode import Encoding, encode_in_order, start_worker
from toolkit.data.index import INDEX_NAME, Index, ShardEntry, Vocabulary
from toolkit.data.output_folder import claim_output_folder
from toolkit.data.survey import Survey, grouped, size_and_time, survey_files
from toolkit.data.tokenizers import FILES as TOKENIZER_FILES
from toolkit.data.tokenizers import open_tokenizer
from toolkit.data.unpack import TextFile, unpacked
from toolkit.data.writer import ShardWriter
from toolkit.errors import UsageError

# As build-nanogpt's and llm.c's FineWeb shards: 200 MB a file.
SHARD_TOKENS = 10**8
_GPT2 = Encoding()


@dataclass(frozen=True)
class PreparedData:
    """What a folder of shards holds; `reused` if it was there already.

    `ignored` counts files in the input folders that are no text by their name, `problem` is the
    first reason why a document was skipped.
    """

    folder: Path
    index: Index
    reused: bool
    ignored: int
    problem: str | None

    @property
    def summary(self) -> str:
        """One line for a person."""
        line = f"{self.folder}: {'reused ' if self.reused else ''}{self.index.describe()}"
        if self.index.skipped:
            line += f"; bad documents skipped: {self.index.skipped:,}, the first is {self.problem}"
        if self.ignored:
            line += f"; files of other kinds ignored: {self.ignored:,}"
        return line


def prepare(
    inputs: Sequence[str | Path],
    out_dir: str | Path,
    *,
    skip_bad: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    processes: int | None = None,
    encoding: Encoding = _GPT2,
    extensions: Sequence[str] = (),
) -> PreparedData:
    """Write the tokens of texts as shards with an `index.json`.

    Documents are taken in the order of `inputs`, files of a folder by name, each after the token
    that ends a text; see `toolkit.data.unpack` and `toolkit.data.documents`. The shards are the
    same for any number of `processes`, by default one per core; with several, a script that calls
    this needs Python's `if __name__ == "__main__":`. A folder with the same content is reused, what
    an interrupted run left is replaced, anything else is left alone.

    Raises:
        UsageError: an input or a document is bad (unless `skip_bad`), nothing is left, `out_dir`
            holds something else or cannot be written, or another process writes there.
        UntrustedError: `out_dir` holds shards that are damaged.
    """
    folder = Path(out_dir)
    with unpacked(inputs, folder, field=encoding.field, extensions=extensions) as (files, ignored):
        return prepare_files(
            files,
            folder,
            ignored=ignored,
            skip_bad=skip_bad,
            shard_tokens=shard_tokens,
            processes=processes,
            encoding=encoding,
        )


def prepare_files(
    files: Sequence[TextFile],
    folder: Path,
    *,
    ignored: int = 0,
    skip_bad: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    processes: int | None = None,
    encoding: Encoding = _GPT2,
) -> PreparedData:
    """Write the tokens of unpacked files as shards; as `prepare`."""
    processes = _cores() if processes is None else processes
    if processes < 1:
        raise UsageError(f"processes must be at least 1, got {processes}")
    tokenizer = open_tokenizer(encoding.tokenizer)
    with _workers(processes if _is_much(files) else 1) as executor:
        surveys = _survey(executor, files, skip_bad=skip_bad, field=encoding.field)
        problem = next((found.problem for found in surveys if found.problem), None)
        if not any(found.source.documents for found in surveys):
            raise UsageError(f"no good document is left; the first problem is {problem}")
        wanted = Index(
            vocabulary=Vocabulary(
                name=tokenizer.name, size=tokenizer.size, sha256=tokenizer.sha256
            ),
            shard_tokens=shard_tokens,
            shards=(),
            sources=tuple(found.source for found in surveys),
        )
        writer = ShardWriter(folder, shard_tokens=shard_tokens, vocabulary_size=tokenizer.size)
        with claim_output_folder(folder, wanted) as earlier:
            index = earlier or _write(writer, wanted, surveys, executor, processes, encoding)
    return PreparedData(folder, index, earlier is not None, ignored, problem)


def _survey(
    executor: Executor, files: Sequence[TextFile], *, skip_bad: bool, field: str
) -> list[Survey]:
    groups = grouped(files, _size)
    tasks = [
        executor.submit(survey_files, group, skip_bad=skip_bad, field=field) for group in groups
    ]
    return [found for task in tasks for found in task.result()]


def _write(
    writer: ShardWriter,
    wanted: Index,
    surveys: list[Survey],
    executor: Executor,
    processes: int,
    encoding: Encoding,
) -> Index:
    folder = writer.folder
    try:
        shards = _write_shards(writer, surveys, executor, processes, encoding)
        _keep_tokenizer(folder, encoding.tokenizer)
        index = Index(
            vocabulary=wanted.vocabulary,
            shard_tokens=wanted.shard_tokens,
            shards=shards,
            sources=wanted.sources,
        )
        write_durably(folder / INDEX_NAME, index.to_json().encode())
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    return index


def _write_shards(
    writer: ShardWriter,
    surveys: list[Survey],
    executor: Executor,
    processes: int,
    encoding: Encoding,
) -> tuple[ShardEntry, ...]:
    parts = [part for found in surveys for part in found.slices]
    with _progress(sum(part.bytes for part in parts)) as progress:
        for size, tokens in encode_in_order(executor, parts, encoding, ahead=4 * processes):
            writer.append(tokens)
            progress.advance(progress.task_ids[0], size)
    for found in surveys:
        if found.slices and size_and_time(found.path) != found.size_and_time:
            raise UsageError(f"{found.source.path}: changed while it was being prepared")
    return writer.finish()


def _keep_tokenizer(folder: Path, tokenizer: str) -> None:
    """Let the shards have the file that their tokens are read with; a named one needs none."""
    kept = {Path(name).suffix: name for name in TOKENIZER_FILES}
    if name := kept.get(Path(tokenizer).suffix):
        write_durably(folder / name, Path(tokenizer).read_bytes())


@contextmanager
def _workers(processes: int) -> Iterator[Executor]:
    pool = _executor(processes)
    try:
        yield pool
    except BrokenProcessPool:
        raise UsageError(
            "a process that encodes text ended early, killed from outside or out of memory; start "
            "again with fewer processes"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _executor(processes: int) -> Executor:
    if processes == 1:
        return ThreadPoolExecutor(1)
    # Forking a process that has threads may deadlock, so each starts afresh.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=start_worker)


def _cores() -> int:
    """Cores this process may use; macOS has no such limit."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _is_much(files: Sequence[TextFile]) -> bool:
    """Whether there is enough text, 4 MB, to make up for starting processes."""
    return sum(map(_size, files)) > 4 * 10**6


def _size(file: TextFile) -> int:
    """Bytes of a file; none of one that cannot be read, which the survey reports."""
    try:
        return os.path.getsize(file.path)
    except OSError:
        return 0


def _progress(total: int) -> Progress:
    """A bar on a terminal; elsewhere one plain line at the start."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"encoding {total:,} bytes of text", highlight=False)
    progress = Progress(
        "encoding",
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    progress.add_task("encoding", total=total)
    return progress
