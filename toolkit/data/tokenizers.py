"""Tokenizers by name or file: tiktoken's, a `tokenizer.json`, a SentencePiece model.

GPT-2's own needs no file and no network. Whatever the kind, text becomes ids that are joined with
one id that separates documents, and ids become text again.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from toolkit.data.vocabulary import (
    RANKS_SHA256,
    VOCABULARY_NAME,
    build_vocabulary,
)
from toolkit.errors import UsageError

FILES = ("tokenizer.json", "tokenizer.model")
"""Names under which a folder keeps its tokenizer, where that is not a named one."""

# What models call the token between documents; the first that a tokenizer has is taken.
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
_SPACE = "\u2581"


class Tokenizer(Protocol):
    """What the toolkit needs of a tokenizer.

    Attributes:
        name: tiktoken's name, or that of the file.
        sha256: of what defines it.
        size: ids are below it.
        end_of_text: the id before each document.
    """

    name: str
    sha256: str
    size: int
    end_of_text: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which nothing stands for a special token."""

    def decode(self, tokens: list[int]) -> str:
        """Return the text of ids; U+FFFD stands where they are no whole character."""

    def byte_lengths(self) -> list[int]:
        """Return for each id the bytes of text it is, 0 for a special one."""


@cache
def open_tokenizer(source: str = VOCABULARY_NAME) -> Tokenizer:
    """Return the tokenizer of a tiktoken name, a `tokenizer.json` or a SentencePiece `.model`.

    Raises:
        UsageError: there is none, it cannot be read, or it has no token that ends a document.
    """
    path = Path(source)
    if path.suffix == ".json":
        return _HuggingFace(path)
    if path.suffix == ".model":
        return _SentencePiece(path)
    return _Tiktoken(source)


def find_tokenizer(folder: Path) -> str | None:
    """Return the tokenizer file that a folder keeps, or None."""
    return next((str(folder / name) for name in FILES if (folder / name).is_file()), None)


class _Tiktoken:
    def __init__(self, name: str) -> None:
        self._encoding = build_vocabulary() if name == VOCABULARY_NAME else _download(name)
        self.name = name
        self.size = self._encoding.n_vocab
        self.end_of_text = self._encoding.eot_token
        is_gpt2 = name == VOCABULARY_NAME
        self.sha256 = (
            RANKS_SHA256 if is_gpt2 else _digest(b"".join(map(self._bytes_of, range(self.size))))
        )

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def decode(self, tokens: list[int]) -> str:
        return self._encoding.decode(tokens)

    def byte_lengths(self) -> list[int]:
        return [len(self._bytes_of(token)) for token in range(self.size)]

    def _bytes_of(self, token: int) -> bytes:
        """Return the text a token stands for; none for special ones and numbers without a token."""
        try:
            value = self._encoding.decode_single_token_bytes(token)
        except KeyError:
            return b""
        return b"" if self._encoding.is_special_token(token) else value


class _HuggingFace:
    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as Fast

        data = _read(path)
        try:
            self._tokenizer = Fast.from_str(data.decode())
        except Exception as error:
            raise UsageError(f"{path}: not a tokenizer.json: {error}") from None
        self.name = path.name
        self.sha256 = _digest(data)
        self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.end_of_text = self._find_end(path)
        # Bytes are spelled one character each, as GPT-2 does.
        self._is_byte_level = '"ByteLevel"' in json.dumps(json.loads(data).get("decoder"))

    def _find_end(self, path: Path) -> int:
        found = (self._tokenizer.token_to_id(name) for name in _ENDS)
        end = next((token for token in found if token is not None), None)
        if end is None:
            raise UsageError(f"{path}: has no token that ends a document ({', '.join(_ENDS)})")
        return int(end)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens)
        return text

    def byte_lengths(self) -> list[int]:
        special = {
            token
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
            if added.special
        }
        pieces = map(self._tokenizer.id_to_token, range(self.size))
        return [
            0
            if token in special or piece is None
            else len(piece)
            if self._is_byte_level
            else _piece_bytes(piece)
            for token, piece in enumerate(pieces)
        ]


class _SentencePiece:
    def __init__(self, path: Path) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError:
            raise UsageError(
                f"{path}: SentencePiece is not installed; `pip install sentencepiece`"
            ) from None
        data = _read(path)
        try:
            self._processor: Any = SentencePieceProcessor(model_proto=data)
        except RuntimeError:
            raise UsageError(f"{path}: not a SentencePiece model") from None
        self.name = path.name
        self.sha256 = _digest(data)
        self.size = self._processor.get_piece_size()
        self.end_of_text = self._processor.eos_id()
        if self.end_of_text < 0:
            raise UsageError(f"{path}: has no token that ends a document")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._processor.encode(text)
        return ids

    def decode(self, tokens: list[int]) -> str:
        text: str = self._processor.decode(tokens)
        return text

    def byte_lengths(self) -> list[int]:
        is_special = (self._processor.is_control, self._processor.is_unknown)
        return [
            0
            if any(check(token) for check in is_special)
            else 1
            if self._processor.is_byte(token)
            else _piece_bytes(self._processor.id_to_piece(token))
            for token in range(self.size)
        ]


def _piece_bytes(piece: str) -> int:
    return len(piece.replace(_SPACE, " ").encode())


def _download(name: str) -> Any:
    import tiktoken

    try:
        return tiktoken.get_encoding(name)
    except ValueError:
        known = ", ".join(tiktoken.list_encoding_names())
        raise UsageError(
            f"unknown tokenizer '{name}'; tiktoken has {known}, and a tokenizer.json or a "
            f"SentencePiece .model is given as a file"
        ) from None
    except OSError as error:
        raise UsageError(
            f"the tokenizer '{name}' cannot be fetched ({type(error).__name__}); only "
            f"'{VOCABULARY_NAME}' comes with the toolkit"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
