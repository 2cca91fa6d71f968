"""Draw some text from a trained run."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from pe._errors import LAST_SEED, whole
from pe.evaluation.load import load_model, load_tokenizer
from pe.evaluation.scorer import NotFinite
from pe.runs import Run, checked
from pe.training.build import max_positions


class _Finite(LogitsProcessor):
    """Lets finite logits pass."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # Other processors may have set single tokens to -inf, but never all of them.
        if not scores.amax(dim=-1).isfinite().all():
            raise NotFinite
        return scores


FINITE = LogitsProcessorList([_Finite()])
"""Stops ``generate`` with `NotFinite`. Otherwise a greedy decoder would write the token whose logit
is the first NaN."""


def sample(run: Run, prompt: str = "", tokens: int = 64, seed: int = 0) -> str:
    """Continue ``prompt`` by ``tokens`` tokens.

    Each token is drawn at temperature 0.8 from the 40 most likely ones.

    Args:
        prompt: the text to continue. An empty one begins a new document.
        seed: of the draws.

    Returns:
        The prompt and its continuation.

    Raises:
        RunError: the run's weights are not on this machine.
        NotFinite: the model's logits are not finite.
        ValueError: prompt and continuation take more positions than the encoding has, ``tokens`` is
            less than 1, or an argument has another type.
    """
    checked(run)
    if not isinstance(prompt, str):
        raise ValueError(f"prompt: expected a text, got {prompt!r}")
    whole("tokens", tokens, 1)
    whole("seed", seed, most=LAST_SEED)
    model, tokenizer = load_model(run), load_tokenizer(run)
    ids = tokenizer(prompt)["input_ids"] or [tokenizer.eos_token_id]
    limit = max_positions(model)
    most = None if limit is None else limit - len(ids) + 1  # the last token needs no position
    if most is not None and tokens > most:
        raise ValueError(
            f"tokens: {tokens} after a prompt of {len(ids)}; expected 1 to {most}, because "
            f"{model.config.pe!r} has {limit} positions"
        )
    inputs = torch.tensor([ids], device=model.device)
    torch.manual_seed(seed)
    out = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=tokens,
        do_sample=True,
        temperature=0.8,
        top_k=40,
        pad_token_id=tokenizer.pad_token_id,
        logits_processor=FINITE,
    )
    text: str = tokenizer.decode(out[0], skip_special_tokens=True)
    return text
