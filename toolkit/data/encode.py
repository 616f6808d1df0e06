"""The second reading: slices of good documents to tokens, in as many processes as wanted."""

import os
import signal
import threading
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from multiprocessing import connection, parent_process
from typing import NamedTuple

import numpy as np

from toolkit.data.cuts import pieces
from toolkit.data.documents import BadDocumentError, document_of_line, is_json_lines
from toolkit.data.survey import Slice, grouped
from toolkit.data.tokenizers import open_tokenizer
from toolkit.data.vocabulary import VOCABULARY_NAME
from toolkit.errors import UsageError

# Both array's and numpy's name for unsigned 32 bits.
_TOKEN = "I"
_BYTE_ORDER_MARK = "\ufeff"


class Encoding(NamedTuple):
    """How text becomes tokens: by `open_tokenizer`'s source, and which field of a line is text."""

    tokenizer: str = VOCABULARY_NAME
    field: str = "text"


def encode_slices(parts: list[Slice], encoding: Encoding) -> np.ndarray:
    """Return the tokens of slices as one uint32 array, the end of text before each document.

    Raises:
        UsageError: a file is no longer what was surveyed.
    """
    tokens = array(_TOKEN)
    for part in parts:
        _encode_readable(part, tokens, encoding)
    return np.array(tokens, dtype=_TOKEN)


def _encode_readable(part: Slice, tokens: "array[int]", encoding: Encoding) -> None:
    try:
        _encode(part, tokens, encoding)
    except (BadDocumentError, UnicodeDecodeError, EOFError):
        raise UsageError(f"{part.path}: changed while it was being prepared") from None
    except OSError as error:
        raise UsageError(f"{part.path}: cannot be read any more: {error.strerror}") from None


def encode_in_order(
    executor: Executor, parts: Iterable[Slice], encoding: Encoding, *, ahead: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield tokens in the order of the slices, and how many bytes of text they were.

    Small slices are encoded together. At most `ahead` groups of them are worked on in advance.
    """
    waiting: list[tuple[int, Future[np.ndarray]]] = []
    for group in grouped(parts, lambda part: part.bytes):
        size = sum(part.bytes for part in group)
        waiting.append((size, executor.submit(encode_slices, group, encoding)))
        if len(waiting) > ahead:
            done, tokens = waiting.pop(0)
            yield done, tokens.result()
    for done, tokens in waiting:
        yield done, tokens.result()


def start_worker() -> None:
    """Make a worker process end with its parent: at once if that is killed, not by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _encode(part: Slice, tokens: "array[int]", encoding: Encoding) -> None:
    tokenizer = open_tokenizer(encoding.tokenizer)
    # The cuts are exact for GPT-2's pattern; another tokenizer is given all there is at once.
    split = pieces if encoding.tokenizer == VOCABULARY_NAME else _whole
    for begins, text in _texts(part, _read(part), encoding.field):
        if begins:
            tokens.append(tokenizer.end_of_text)
        for piece in split(text):
            tokens.extend(tokenizer.encode(piece))


def _whole(text: str) -> Iterator[str]:
    yield text


def _texts(part: Slice, data: bytes, field: str) -> Iterator[tuple[bool, str]]:
    """Yield the texts in a slice, each with whether a document begins there."""
    if is_json_lines(part.path):
        # Only "\n" ends a line of JSON; `bytes.splitlines` would also split at "\r".
        for line in data.split(b"\n"):
            text = document_of_line(line, field)
            if text is not None:
                yield True, text
        return
    text = data.decode()
    if part.start == 0:
        text = text.removeprefix(_BYTE_ORDER_MARK)
    yield part.start == 0, text.replace("\r\n", "\n")


def _read(part: Slice) -> bytes:
    with open(part.path, "rb") as file:
        file.seek(part.start)
        data = file.read(part.stop - part.start)
    if len(data) < part.stop - part.start:
        raise EOFError
    return data
