from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.inference.conftest import CPU, GPT2_WORDS, random_model, save
from toolkit.data.tokenizers import open_tokenizer
from toolkit.errors import UsageError
from toolkit.inference.generate import Sampling, generate
from toolkit.inference.source import find_source
from toolkit.inference.text import stream_text
from toolkit.inference.trained import Trained, read_trained
from toolkit.model.cache import KeyValueCache
from toolkit.training.exchange import export_checkpoint

GREEDY = Sampling(temperature=0)
PROMPT = "To be, or not"


def without_cache(trained: Trained, prompt: list[int], tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(tokens):
        logits = trained.model(torch.tensor([text]))[0, -1, : trained.vocabulary]
        text.append(int(logits.argmax()))
    return text[len(prompt) :]


def test_the_cache_changes_no_logit(trained: Trained) -> None:
    tokens = torch.randint(50_000, (2, 32))
    cache = KeyValueCache(trained.sizes, batch=2, device=CPU)
    with torch.inference_mode():
        whole = trained.model(tokens)
        stepwise = [trained.model.next_logits(tokens[:, :7], cache)]
        stepwise += [trained.model.next_logits(part, cache) for part in tokens[:, 7:].split(1, 1)]
    assert cache.length == 32
    torch.testing.assert_close(torch.stack(stepwise, 1), whole[:, 6:], rtol=1e-4, atol=1e-5)


def test_greedy_text_is_what_transformers_generates_from_the_export(
    run: Path, trained: Trained
) -> None:
    from transformers import GPT2LMHeadModel

    folder = export_checkpoint(run, None, step=None).weights.parent
    prompt = trained.encode(PROMPT)
    theirs = GPT2LMHeadModel.from_pretrained(folder).generate(
        torch.tensor([prompt]), max_new_tokens=32 - len(prompt), do_sample=False
    )
    own = list(generate(trained, prompt, GREEDY, tokens=32 - len(prompt), seed=0))
    assert len(set(own)) > 5
    assert own == theirs[0, len(prompt) :].tolist()
    assert own == without_cache(trained, prompt, len(own))
    exported = read_trained(find_source(folder), device=CPU)
    assert list(generate(exported, prompt, GREEDY, tokens=len(own), seed=0)) == own


def test_text_goes_on_beyond_the_block_size(trained: Trained) -> None:
    prompt = trained.encode(PROMPT)
    found = list(generate(trained, prompt, GREEDY, tokens=60, seed=0))
    assert len(found) == 60
    # From where the block was full, as if the last half of it were all.
    text = prompt + found
    assert without_cache(trained, text[17:33], 8) == text[33:41]


def test_a_seed_decides_the_text_and_padding_is_never_chosen(trained: Trained) -> None:
    warm = Sampling(temperature=50.0)
    first, again = (list(generate(trained, [1], warm, tokens=40, seed=7)) for _ in range(2))
    other = list(generate(trained, [1], warm, tokens=40, seed=8))
    assert first == again != other
    assert max(first) < trained.vocabulary == 50_257


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_p=0.6), {0, 1}),
        (Sampling(top_p=0.5), {0}),
        (Sampling(top_k=3, top_p=0.99), {0, 1, 2}),
        (Sampling(), {0, 1, 2, 3}),
    ],
)
def test_only_the_likeliest_are_considered(sampling: Sampling, possible: set[int]) -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator = torch.Generator().manual_seed(1)
    assert {sampling.choose(logits, generator) for _ in range(400)} == possible


def test_the_end_of_a_document_ends_the_text(run_file: Path) -> None:
    model = random_model(run_file)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[50_256] = model.transformer.ln_f.bias
    trained = read_trained(find_source(save(run_file, model, 1)), device=CPU)
    assert list(generate(trained, [5], GREEDY, tokens=9, seed=0)) == []


def test_text_is_streamed_in_whole_characters() -> None:
    gpt2 = open_tokenizer()
    text = "naïve 🙂 café — 日本"
    pieces = list(stream_text(gpt2.encode(text), gpt2))
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert not any("\ufffd" in piece for piece in pieces)


def test_text_ends_before_the_stop_even_inside_a_token() -> None:
    gpt2 = open_tokenizer()
    tokens = gpt2.encode("one. two, three. four")
    assert "".join(stream_text(tokens, gpt2, stop="o, th")) == "one. tw"
    assert "".join(stream_text(tokens, gpt2, stop="five")) == "one. two, three. four"


def test_nothing_is_generated_that_nobody_reads(trained: Trained) -> None:
    found = generate(trained, [1], GREEDY, tokens=10**9, seed=0)
    assert len(list(islice(found, 3))) == 3


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}])
def test_a_choice_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--"):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_a_text_outside_the_vocabulary_is_refused(run_file: Path) -> None:
    words = [word for word in GPT2_WORDS if "vocab" not in word]
    trained = read_trained(
        find_source(save(run_file, random_model(run_file, words), 1, words)), device=CPU
    )
    with pytest.raises(UsageError, match="ends at 511"):
        trained.encode("Shakespeare")
