"""Tokens to evaluate on: a run's validation set, a folder of shards, or a file of text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from toolkit.data.batches import TokenDataset
from toolkit.data.stream import TokenStream
from toolkit.errors import UsageError
from toolkit.inference.trained import Trained

_SHARDS = (".bin", ".npy")


@contextmanager
def open_tokens(trained: Trained, data: Path | None) -> Iterator[TokenDataset]:
    """Yield the sequences to evaluate on.

    A text is prepared as `toolkit data prepare` would, in a temporary folder. One that is shorter
    than the run's sequences is one sequence.

    Args:
        trained: whose tokenizer, sequence length and validation set are used.
        data: shards or a text; the run's `data.val` if None.

    Raises:
        UsageError: there is nothing to evaluate on.
    """
    if data is None:
        names = trained.config.get("data", {}).get("val")
        if not names:
            raise UsageError(f"{trained.source.name} names no data.val; give --data DIR|FILE")
        yield _dataset(trained, TokenStream(names, vocab_size=trained.sizes.vocab_size))
    elif data.is_dir() or data.suffix in _SHARDS or not data.exists():
        yield _dataset(trained, TokenStream(data, vocab_size=trained.sizes.vocab_size))
    else:
        with TemporaryDirectory() as folder:
            yield _dataset(trained, _prepared(trained, data, Path(folder) / "shards"))


def _prepared(trained: Trained, text: Path, folder: Path) -> TokenStream:
    from toolkit.data.encode import Encoding
    from toolkit.data.prepare import prepare

    prepare([text], folder, processes=1, encoding=Encoding(trained.tokenizer_source))
    return TokenStream(folder, vocab_size=trained.sizes.vocab_size)


def _dataset(trained: Trained, stream: TokenStream) -> TokenDataset:
    seq_len = trained.config.get("data", {}).get("seq_len", trained.sizes.block_size)
    return TokenDataset(stream, seq_len=min(seq_len, max(len(stream) - 1, 1)))
