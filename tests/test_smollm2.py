"""SmolLM2-135M-Instruct, where `make smollm2` has fetched it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pe
from pe.pretrained.load import load

MODEL = Path(__file__).resolve().parents[1] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"

pytest.importorskip("gguf", reason="make smollm2 installs the gguf package")
if not MODEL.exists():
    pytest.skip("SmolLM2 is not here: make smollm2 fetches it (93 MB)", allow_module_level=True)


def test_a_real_model_is_read_and_its_own_settings_change_nothing() -> None:
    model, tokenizer = load(MODEL)
    hooked, longer = pe.adapt(model, plain=False), pe.adapt(model, "yarn", factor=4)
    ids = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    with torch.no_grad():
        gap = (hooked(ids).logits - model(ids).logits).abs().max()
    assert gap < 1e-3, "of logits of about 20"
    for one in (model, hooked, longer):
        text = tokenizer.decode(one.generate(ids, max_new_tokens=3, do_sample=False)[0])
        assert "Paris" in text
    assert longer.config.rope_parameters["original_max_position_embeddings"] == 8192
