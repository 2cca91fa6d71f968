"""A run's checkpoint under the LM Evaluation Harness, where that package is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_tools import small
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install lm-eval")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and an end token with id 0."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{character: i + 1 for i, character in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_likelihoods_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = small(name, vocab_size=257, max_position_embeddings=64), byte_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    # Beyond the training length too, which is what this project looks at.
    harness = HFLM(pretrained=str(tmp_path), device="cpu", batch_size=2, max_length=512)
    pairs = [("hello wor", "ld"), ("a longer context, " * 12 + "a longer", " context at its end")]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    for (context, continuation), (found, greedy) in zip(
        pairs, harness.loglikelihood(requests), strict=True
    ):
        ids = torch.tensor([tokenizer.encode(context + continuation)])
        start = len(tokenizer.encode(context))
        with torch.no_grad():
            scores = model(ids).logits[0, start - 1 : -1].log_softmax(-1)
        want = scores.gather(1, ids[0, start:, None]).sum()
        assert found == pytest.approx(want.item(), rel=1e-4)
        assert not greedy
    assert HFLM(pretrained=str(tmp_path), device="cpu").max_length == 64  # unless it is told
