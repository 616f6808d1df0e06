"""Tokens as they come, text as it is sure."""

from collections.abc import Iterable, Iterator

from toolkit.data.tokenizers import Tokenizer

_UNSURE = "\ufffd"


def stream_text(
    tokens: Iterable[int], tokenizer: Tokenizer, *, stop: str | None = None
) -> Iterator[str]:
    """Yield the text of tokens in pieces, each as soon as what follows cannot change it.

    A character may take several tokens, and a token's text may depend on the one before it, so
    each is decoded together with those that the last piece was made of.

    Args:
        tokens: ids, as they come.
        tokenizer: whose they are.
        stop: the text ends before this, which may begin in one token and end in another.
    """
    return _until(_pieces(tokens, tokenizer), stop) if stop else _pieces(tokens, tokenizer)


def _pieces(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    before: list[int] = []
    new: list[int] = []
    for token in tokens:
        new.append(token)
        text = _text_after(before, new, tokenizer)
        if text and not text.endswith(_UNSURE):
            yield text
            before, new = new, []
    if new and (text := _text_after(before, new, tokenizer)):
        yield text


def _text_after(before: list[int], new: list[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(before + new)[len(tokenizer.decode(before)) :]


def _until(pieces: Iterable[str], stop: str) -> Iterator[str]:
    held = ""
    for piece in pieces:
        held += piece
        if stop in held:
            yield held[: held.index(stop)]
            return
        kept = next(size for size in range(len(stop), -1, -1) if held.endswith(stop[:size]))
        if sure := held[: len(held) - kept]:
            yield sure
        held = held[len(held) - kept :]
    if held:
        yield held
