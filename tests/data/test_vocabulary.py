import inspect

import pytest
from tiktoken_ext import openai_public

from toolkit.data.vocabulary import (
    END_OF_TEXT,
    RANKS_FILE,
    RANKS_SHA256,
    VOCABULARY_SIZE,
    build_vocabulary,
)
from toolkit.errors import UntrustedError
from toolkit.model.sizes import GPT2_VOCAB_SIZE


def test_the_model_has_a_row_for_every_token():
    assert GPT2_VOCAB_SIZE == VOCABULARY_SIZE


def test_encodes_as_gpt2_does():
    vocabulary = build_vocabulary()
    # The ids that OpenAI's own encoder gives for this text.
    assert vocabulary.encode_ordinary("Hello world") == [15496, 995]
    assert vocabulary.n_vocab == VOCABULARY_SIZE
    assert vocabulary.eot_token == END_OF_TEXT
    text = "Grüße, 世界 🎉 don't\n\n  stop\x00"
    assert vocabulary.decode(vocabulary.encode_ordinary(text)) == text


def test_text_that_spells_a_special_token_stays_text():
    tokens = build_vocabulary().encode_ordinary("<|endoftext|>")
    assert END_OF_TEXT not in tokens
    assert len(tokens) > 1


def test_expects_the_same_file_as_tiktoken():
    assert RANKS_SHA256 in inspect.getsource(openai_public.r50k_base)


def test_has_its_licence_beside_it():
    assert "OpenAI" in (RANKS_FILE.parent / "LICENSE").read_text(encoding="utf-8")


def test_a_changed_rank_file_is_refused(tmp_path):
    changed = tmp_path / "ranks.tiktoken"
    changed.write_bytes(RANKS_FILE.read_bytes().replace(b"IQ== 0", b"IQ== 1", 1))
    with pytest.raises(UntrustedError) as caught:
        build_vocabulary(changed)
    assert str(changed) in str(caught.value)
    assert RANKS_SHA256 in str(caught.value)
    with pytest.raises(UntrustedError, match="No such file"):
        build_vocabulary(tmp_path / "gone")
