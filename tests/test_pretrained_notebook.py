"""pretrained.ipynb: a tiny model of transformers, untouched, adapted and trained, on record."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, CohereConfig, LlamaConfig, PreTrainedTokenizerFast

import pe
from pe.figures import pretrained as figures
from pe.notebooks import pretrained_page as page
from pe.notebooks.parameters import configure_pretrained
from pe.pretrained.judged import Judged
from pe.pretrained.load import load
from pe.pretrained.trial import try_out

ROOT = Path(__file__).resolve().parent.parent
SIZES: dict[str, Any] = {
    "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, whose tokens are bytes, and a corpus."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tiny")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0, **{character: i + 1 for i, character in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(tmp_path / "tiny")
    draw = random.Random(0)
    (tmp_path / "corpus").mkdir()
    for i in range(16):
        text = "".join(draw.choices("abcdefgh \n", k=1200))
        (tmp_path / "corpus" / f"{i}.txt").write_text(text)
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(place: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(place / "tiny"), "corpus": str(place / "corpus"), "lengths": "128,512",
        "windows": 2, "target_tokens": 32, "prompts": 0,
    } | more  # fmt: skip


def test_variants_are_judged_on_the_same_tokens_and_recorded(place: Path) -> None:
    run = configure_pretrained(**arguments(place, factor=4.0, prompts=3))
    record = try_out(run, quiet=True)
    assert record == run.read()
    assert record["status"] == "complete"
    assert record["host"] | {"known_from": ""} == {
        "type": "llama", "parameters": record["host"]["parameters"], "training_length": 128,
        "known_from": "",
    }  # fmt: skip
    assert record["data"]["tokenizer"] == record["settings"]["model"]
    assert str(run.directory) not in json.dumps(record), "no path of this machine"
    assert record["transformers_settings"]["rope_type"] == "yarn"
    untouched, adapted = (record["outcomes"][v] for v in ("untouched", "adapted"))
    assert list(record["outcomes"]) == ["untouched", "adapted"]
    assert untouched["perplexity"]["512"]["nll"] != adapted["perplexity"]["512"]["nll"]
    assert len(untouched["needles"]["tasks"]["multikey"]["512"]["prompts"]) == 3
    assert figures.cut(record) == [untouched["perplexity"]["128"]["nll"]] * 2
    assert "128" not in untouched["needles"]["tasks"]["multikey"], "no room for its needles"
    for show in (page.losses, page.samples, page.settings):
        assert "–" not in show(record).data
    assert page.retrieval(record).data.count("–") == 4
    assert "512" in page.plan(run).data
    for figure in (figures.by_length(record), figures.by_position(record)):
        assert figure.axes
    (place / "tiny" / "model.safetensors").unlink()
    assert try_out(run, quiet=True) == record, "a complete record needs no weights"


def test_training_without_rotation_lowers_the_loss_and_saves_a_model_that_loads(
    place: Path,
) -> None:
    run = configure_pretrained(
        **arguments(place, pe="nope", steps=8, context_length=24, learning_rate=1e-2)
    )
    record = try_out(run, quiet=True)
    losses = [record["outcomes"][v]["perplexity"]["128"]["nll"] for v in ("adapted", "trained")]
    assert losses[1] < losses[0] - 0.5
    assert [line["step"] for line in record["training"]] == list(range(1, 9))
    assert record["transformers_settings"] is None
    model, tokenizer = load(run.directory / "checkpoint")
    assert len(tokenizer) == 257
    assert model.pe_adaptation.spec == "nope"
    assert json.loads((run.directory / "pretrained.json").read_text()) == record
    assert "<svg" in page.trained(run, record).data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "which one"), ({"model": "nowhere"}, "no such file"),
        ({"pe": "yarm"}, "unknown encoding 'yarm'"), ({"lengths": "32,64"}, "leaves no context"),
        ({"lengths": "1k"}, "whole numbers"),
        ({"factor": 2.0, "pe_options": {"factor": 4.0}}, "give it once"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_anything_runs(
    change: dict[str, Any], message: str, place: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        configure_pretrained(**arguments(place, **change))
    assert not (place / "runs").exists()


def test_logits_that_are_a_multiple_of_the_product_are_scored_as_they_are() -> None:
    torch.manual_seed(0)
    config = CohereConfig(**SIZES, logit_scale=0.25, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(config).eval()
    judged, ids = Judged(model), torch.arange(3, 12)[None]
    with torch.no_grad():
        have = judged.lm_head(judged.model(ids).last_hidden_state)
        torch.testing.assert_close(have, model(ids).logits, rtol=1e-4, atol=1e-5)
    assert pe.adapt(model, "pi").get_output_embeddings() is not None


def test_the_guide_shows_each_outcome_beside_the_untouched_model() -> None:
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(ROOT / "book" / "_ext"))
    import book_pretrained
    import book_records

    def record(pe_name: str, loss: float) -> dict[str, Any]:
        outcomes = {
            name: {"perplexity": {"512": {"nll": nll}}}
            for name, nll in (("untouched", 1.5), ("adapted", loss))
        }
        settings = {"model": "tiny", "pe": pe_name, "options": {"factor": 4.0}, "lengths": [512]}
        return {"settings": settings, "outcomes": outcomes}

    text = book_pretrained.table([record("yarn", 1.625), record("pi", 3.0)])
    assert book_records.lines(text)[1:] == [
        ["tiny", "untouched", "1.500"],
        ["tiny", "`yarn`, factor 4", "1.625 (+0.125)"],
        ["tiny", "`pi`, factor 4", "3.000 (+1.500)"],
    ]
