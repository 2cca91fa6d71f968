"""pretrained.ipynb: a tiny model of transformers, untouched, adapted and trained, on record."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import pe
from pe.data import Batches
from pe.data.shards import Split
from pe.encodings.rope import RoPE
from pe.figures import pretrained as figures
from pe.notebooks import pretrained_page as page
from pe.notebooks.parameters import configure_pretrained
from pe.pretrained import study as studies
from pe.pretrained.judged import Judged
from pe.pretrained.load import load
from pe.pretrained.recalibrate import Recalibration
from pe.pretrained.trial import try_out
from pe.recipes.named import recipe
from pe.results import intervals
from pe.results import pretrained as results

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
    assert results.cut(record) == [untouched["perplexity"]["128"]["nll"]] * 2
    assert "128" not in untouched["needles"]["tasks"]["multikey"], "no room for its needles"
    for shown in (page.losses(record), page.samples(record), page.settings(run, record)):
        assert "–" not in shown.data
    found = page.retrieval(record).data
    assert found.count(" – |") == 4 + 4, "no room at 128, so cutting to 128 has no share either"
    assert found.count("untouched, cut to the training length") == 2
    assert "512" in page.plan(run).data
    for figure in (figures.by_length(record), figures.by_position(record)):
        assert figure.axes
    drawn = [line.get_label() for line in figures.several([record]).axes[0].lines]
    assert drawn[:2] == ["untouched", "YaRN, factor 4"]
    (place / "tiny" / "model.safetensors").unlink()
    assert try_out(run, quiet=True) == record, "a complete record needs no weights"


class Overflowing(RoPE):
    """Finite up to position 63, where the sample begins."""

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        q, k = super().rotate(q, k, q_positions, k_positions, tables)
        return q, k * torch.where(k_positions < 64, 1.0, math.inf)[:, None, :, None]


def test_a_variant_whose_logits_are_not_finite_finds_and_writes_nothing(place: Path) -> None:
    run = configure_pretrained(
        **arguments(place, pe="test_pretrained_notebook:Overflowing", prompts=3)
    )
    record = try_out(run, quiet=True)
    assert run.read() == record, "the record allows it"
    untouched, adapted = (record["outcomes"][v] for v in ("untouched", "adapted"))
    assert untouched["sample"]
    assert adapted["sample"] is None
    cell = adapted["needles"]["tasks"]["passkey"]["512"]
    assert (cell["prompts"], cell["reason"]) == (None, "no value: the logits are not finite")
    cells = untouched["needles"]["tasks"]["passkey"]
    cells |= {n: cells["512"] | {"prompts": "111"} for n in ("128", "512")}  # as if it found all
    assert results.discordant(record, "untouched", "passkey") is not None
    assert results.discordant(record, "adapted", "passkey") is None
    assert adapted["perplexity"]["128"]["reason"] == "no value: the loss is not finite"
    assert "No text: the logits are not finite." in page.samples(record).data


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
    shown = page.settings(run, record).data
    assert "transformers has no setting" in shown
    assert f"{run.study}/{run.name}/checkpoint" in shown, "where the trained model is"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "expected a folder"), ({"model": "nowhere"}, "no such file"),
        ({"pe": "nope", "factor": 4.0}, "'nope' has no option 'factor'"),
        ({"batch_size": 4}, "batch_size: 4 has no effect without training; give steps"),
        ({"learning_rate": 1e-3}, "learning_rate: 0.001 has no effect without training"),
        ({"context_length": 64}, "context_length: 64 has no effect without training"),
        ({"compiled": False}, "compiled: False has no effect without training"),
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


def small(layers: int = 1) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"num_hidden_layers": layers}, pad_token_id=0))


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 264, 400)
    batches = Batches(Split(tokens, np.zeros(1, dtype=np.int64), ["drawn"]), 16, 2, 0)

    def recalibration(model: Any, stop_at: int = 0) -> tuple[Recalibration, list[Any]]:
        lines: list[Any] = []

        def line(logged: dict[str, Any]) -> None:
            lines.append(logged)
            if logged["step"] == stop_at:
                signal.raise_signal(signal.SIGTERM)

        asked = recipe("tiny", steps=4, decay_steps=0, warmup_steps=1, compile="off")
        return Recalibration(pe.adapt(model, "nope"), batches, asked, tmp_path, line), lines

    whole, expected = recalibration(small())
    speed = whole.run()
    assert speed["tokens_per_second"] > 0
    assert not speed["compiled"]
    stopped, lines = recalibration(small(), stop_at=2)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        stopped.run()
    rest, more = recalibration(small())
    rest.run()
    assert lines + more == expected
    assert [line["step"] for line in lines] == [1, 2]
    for one, other in zip(whole.model.parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert list(tmp_path.iterdir()) == [tmp_path / "state.pt"], "until the model is measured"
    last, _ = recalibration(small())
    assert last.run()["seconds"] > 0
    last.forget()
    assert not list(tmp_path.iterdir())


def test_a_compiled_layer_stores_nothing_outside_of_its_graph() -> None:
    """torch 2.11 fails to compile a layer that stores a named tuple in an object around it."""
    decoder = pe.adapt(small(), "rope", plain=False).get_decoder()
    calls: list[Any] = []

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        calls.append(kwargs["position_embeddings"])

    decoder.layers[0].register_forward_pre_hook(look, with_kwargs=True)
    ids = torch.arange(16)[None]
    eager = decoder(ids).last_hidden_state
    for layer in decoder.layers:
        layer.forward = torch.compile(layer.forward, backend="eager")
    assert torch.equal(decoder(ids).last_hidden_state, eager)
    assert [bool(call.prepared) for call in calls] == [True, False]


def test_a_study_measures_the_untouched_model_once_and_searches_factors(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pe.pretrained.trial.SEARCH", {"iterations": 0, "population": 4, "windows": 2, "seed": 0}
    )
    first = try_out(configure_pretrained(**arguments(place, pe="pi", factor=2.0)), quiet=True)
    searched = arguments(place, pe="longrope", factor=2.0, pe_options={"long_factor": "searched"})
    run = configure_pretrained(**searched)
    record = try_out(run, quiet=True)
    untouched = record["outcomes"]["untouched"]
    assert untouched.pop("taken_from") == first["run"]
    assert untouched == first["outcomes"]["untouched"]
    assert "taken_from" not in record["outcomes"]["adapted"]
    search = json.loads((run.directory / "longrope-2x.json").read_text())
    assert search["settings"]["length"] == 256
    assert len(search["history"]) == 4


def test_every_trial_of_the_study_can_be_put_on_a_model(place: Path) -> None:
    study = studies.load_study("smollm2")
    model = small()
    for trial in study.runs:
        run = studies.configured(study, trial, str(place / "tiny"), 100 if trial.trained else 0)
        options = {k: v for k, v in run.settings.options.items() if v != "searched"}
        assert pe.adapt(model, run.settings.pe, **options) is not model
        assert bool(run.settings.steps) == trial.trained
        assert trial.pe in studies.papermill(study, trial, 100)
    command = shlex.split(studies.papermill(study, study.runs[-2], 0))
    values = yaml.safe_load(command[-1]) | {"model": str(place / "tiny")}
    wanted = studies.configured(study, study.runs[-2], str(place / "tiny"), 0)
    assert configure_pretrained(**values).directory == wanted.directory, "the command repeats it"
    with pytest.raises(ValueError, match="unknown study 'smolm2'"):
        studies.load_study("smolm2")


def test_a_file_that_is_no_study_of_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, message in (
        ("", "expected a dictionary, got None"), ("a: 1", "unknown key 'a'"),
        ("mini: {}\ntitle: t", "study: missing\n.*mine.yaml: model: missing"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ValueError, match=f"mine.yaml: .*{message}"):
            studies.load_study(str(path))
    path.write_text("{study: s, model: m, steps: [1], runs: [{pe: yarn, factor: 2}]}")
    with pytest.raises(ValueError, match="mine.yaml: the study has no part 'mini'; leave --mini"):
        studies.load_study(str(path), mini=True)


def test_a_packed_model_and_its_tokens_are_what_a_trial_finds_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "lease"))
    lease = importlib.import_module("pretrained")
    subprocess.run(["git", "init", "-q", "."], check=True)
    corpus, tiny = str(place / "corpus"), place / "tiny"
    (place / "lease").mkdir()
    lease.pack(str(place / "cache"), corpus, str(tiny), "parts", "lease")
    assert (place / "lease" / "config" / "config.json").exists()
    monkeypatch.setenv("PE_CACHE", str(place / "there"))
    lease.place(str(place / "parts" / "0"), corpus, str(place / "models"))
    run = configure_pretrained(**arguments(place, model=str(place / "models" / "tiny"), pe="pi"))

    def refuse(*arguments: Any) -> None:
        raise AssertionError("the tokens that were packed are not found")

    monkeypatch.setattr("pe.data.preparation.write_shards", refuse)
    assert try_out(run, quiet=True)["status"] == "complete"
    sys.modules.pop("pretrained"), sys.modules.pop("tokens")


def test_the_guide_shows_each_outcome_beside_the_untouched_model() -> None:
    pytest.importorskip("sphinx")
    import book_pretrained
    import book_records

    def cell(*losses: float) -> dict[str, Any]:
        return {"nll": sum(losses) / len(losses), "window_nll": list(losses)}

    def record(pe_name: str, loss: float) -> dict[str, Any]:
        outcomes = {
            name: {"perplexity": {"512": near, "1024": far}}
            for name, near, far in (
                ("untouched", cell(1.0, 2.0), cell(6.75, 7.25)),
                ("adapted", cell(loss - 0.5, loss + 0.5), cell(1.0, 3.0)),
            )
        }
        settings = {
            "model": "tiny", "pe": pe_name, "options": {"factor": 4.0}, "lengths": [512, 1024],
            "steps": 0, "prompts": 4,
        }  # fmt: skip
        host = {"training_length": 512}
        data = {"vocab_size": 20_000}
        return {
            "run": pe_name, "settings": settings, "outcomes": outcomes, "host": host, "data": data,
        }  # fmt: skip

    trained = record("nope", 9.0)
    after = {"512": cell(1.5, 2.0), "1024": cell(9.5, 10.5)}
    trained["outcomes"]["trained"] = {"perplexity": after}
    own = {"512": {"prompts": "1101"}, "1024": {"prompts": "1111"}}
    trained["outcomes"]["adapted"]["needles"] = {"tasks": {"passkey": own}}
    trained["settings"] |= {
        "options": {}, "steps": 1600, "batch_size": 16, "context_length": 8192,
        "learning_rate": 3e-4,
    }  # fmt: skip
    trained["training_speed"] = {"tokens_per_second": 2e5, "peak_memory_gib": 60.4}
    trained |= {"hardware": {"name": "a card"}}
    own = {"512": {"prompts": "1110"}, "1024": {"prompts": "0000"}}
    trained["outcomes"]["untouched"]["needles"] = {"tasks": {"passkey": own}}
    assert book_records.lines(book_pretrained.training([record("pi", 3.0), trained]))[1:] == [
        ["`nope`", "0.0003", "210 M", "9.000", "1.750", "200,000", "60", "a card"]
    ]
    cut = "untouched, cut to its training length"
    assert book_records.lines(book_pretrained.found([trained])) == [
        ["encoding", "512", "1,024", "all beyond training"],
        [cut, "75%<br>(30–95)", "38%<br>(15–48)", "38%<br>(15–48)"],
        ["untouched", "75%<br>(30–95)", "0%<br>(0–49)", "0%<br>(0–49)"],
        ["`nope`", "75%<br>(30–95)", "100%<br>(51–100)", "100%<br>(51–100)"],
    ]
    gap = "+62 points<br>+12 to +85"  # Newcombe's of 100% (51–100) and 38% (15–48)
    assert book_records.lines(book_pretrained.found([trained], True))[2] == ["`nope`", gap, gap]
    assert book_pretrained.what(trained, "trained") == "`nope`, 1,600 steps at 0.0003"
    # the vocabulary has 20,000 tokens, so guessing has a loss of 9.9
    for against in (False, True):
        line = book_records.lines(book_pretrained.table([trained], against))[-1]
        assert line[2] == "worse than guessing"
    records = [record("yarn", 1.625), record("pi", 3.0)]
    assert book_records.lines(book_pretrained.table(records))[1:] == [
        [cut, "1.500", "1.500"],
        ["untouched", "1.500", "7.000"],
        ["`yarn`, factor 4", "1.625", "2.000"],
        ["`pi`, factor 4", "3.000", "2.000"],
    ]
    # of the same windows; what is equal in all of them has no spread
    assert book_records.lines(book_pretrained.table(records, True))[1:] == [
        ["untouched", "–", "+5.500<br>+2.323 to +8.677"],
        ["`yarn`, factor 4", "**+0.125<br>+0.125 to +0.125**", "+0.500<br>−5.853 to +6.853"],
        ["`pi`, factor 4", "**+1.500<br>+1.500 to +1.500**", "+0.500<br>−5.853 to +6.853"],
    ]


def test_what_the_page_says_of_smollm2_is_what_its_records_show() -> None:
    """Each sentence of pretrained.md that ranks, held against the prompts and windows on record."""
    pytest.importorskip("sphinx")
    import book_pretrained

    records = {
        book_pretrained.what(record, "adapted"): record
        for record in book_pretrained.records_of(
            ROOT / "runs", "pretrained", "python-packages", trained=False
        )
    }
    added = {name: results.added(record, "adapted") for name, record in records.items()}
    for name, gaps in added.items():  # in loss, nothing beats cutting the text
        assert all(gap and gap.verdict == "higher" for gap in gaps[2:]), name
    best = ("`self_extend`, factor 8", "`yarn`, dynamic", "`yarn`, factor 2")
    at_twice = sorted(added, key=lambda name: added[name][2].value)  # type: ignore[union-attr]
    assert set(at_twice[:3]) == set(best)
    for place in (3, 4):
        assert min(added, key=lambda name: added[name][place].value) == best[0]  # type: ignore[union-attr]
    for name in best[:2]:  # on short texts nothing is shown that they add
        assert all(gap and gap.verdict != "higher" for gap in added[name][:2]), name
    factors = [f"`yarn`, factor {n}" for n in (2, 4, 8)]
    near = [r["outcomes"]["adapted"]["perplexity"]["8192"]["window_nll"]
            for r in (records[name] for name in factors)]  # fmt: skip
    for small, large in itertools.pairwise(near):  # a larger factor costs more on short texts
        assert intervals.mean_interval(intervals.paired(large, small)).low > 0

    counts = {name: results.discordant(record, "adapted", "passkey")
              for name, record in records.items()}  # fmt: skip
    p = dict(zip(counts, intervals.holm([intervals.mcnemar(*x or ()) for x in counts.values()]),
                 strict=True))  # fmt: skip
    more = {name for name, (only, other) in counts.items() if p[name] < 0.05 and only > other}
    searched = "`longrope`, factor 8, long_factor searched"
    assert more == {"`self_extend`, factor 8", "`yarn`, dynamic", searched, *factors[1:]}
    for record in records.values():  # in multikey none is shown to find more than cutting
        gap = results.more_than_cut(record, "adapted", "multikey")[-1]
        assert gap is not None
        assert gap.interval is not None
        assert gap.interval.low <= 0
    reach = records["`self_extend`, factor 8"]
    far = results.beyond(reach)

    def answers(record: dict[str, Any]) -> str:
        return "".join(results.answers(record, "adapted", "passkey", n) or "" for n in far)

    others = sorted(more - {"`self_extend`, factor 8"})
    pairs = [list(zip(answers(reach), answers(records[name]), strict=True)) for name in others]
    each = [intervals.mcnemar(x.count(("1", "0")), x.count(("0", "1"))) for x in pairs]
    shown = {name for name, p in zip(others, intervals.holm(each), strict=True) if p < 0.05}
    assert shown == more - {"`self_extend`, factor 8", searched}  # it finds more than YaRN does
    for n in results.lengths(reach):  # searched factors add less than YaRN's
        own, other = (
            records[name]["outcomes"]["adapted"]["perplexity"][str(n)]["window_nll"]
            for name in (searched, factors[2])
        )
        assert intervals.mean_interval(intervals.paired(own, other)).high < 0


def test_what_the_page_says_of_smollm2_trained_further_is_what_its_records_show() -> None:
    pytest.importorskip("sphinx")
    import book_pretrained

    both = book_pretrained.records_of(ROOT / "runs", "pretrained", "python-packages", trained=True)
    records = {record["settings"]["pe"]: record for record in both}
    assert set(records) == {"nope", "rope"}
    assert len({(r["settings"]["steps"], r["settings"]["learning_rate"]) for r in both}) == 1
    s = both[0]["settings"]  # the paper's models: at least 31.5 billion tokens
    assert 200e6 <= s["steps"] * s["batch_size"] * s["context_length"] < 0.01 * 31.5e9
    near = [n for n in results.lengths(both[0]) if n not in results.beyond(both[0])]
    for name, verdict in (("nope", "higher"), ("rope", "lower")):
        gaps = results.added(records[name], "trained")[: len(near)]
        assert {gap and gap.verdict for gap in gaps} == {verdict}
    guessing = math.log(both[0]["data"]["vocab_size"])
    before, after = (results.nll(records["nope"], name) for name in ("adapted", "trained"))
    assert after[1] < 0.5 * before[1]
    assert all(b > a for b, a in zip(after[2:], before[2:], strict=True))
    assert after[2] < guessing < min(after[3:])
    for task in results.tasks(both[0]):  # the dropped model finds nothing, the kept one only near
        assert {x and x.value for x in results.found(records["nope"], "trained", task)} == {0}
        for name in records:
            assert results.found_beyond(records[name], "trained", task).value == 0  # type: ignore[union-attr]


def test_the_page_of_a_method_has_the_records_of_its_encoding_alone() -> None:
    pytest.importorskip("sphinx")
    import book_pretrained

    chosen = book_pretrained.records_of(ROOT / "runs", "pretrained", "python-packages", ["yarn"])
    assert {record["settings"]["pe"] for record in chosen} == {"yarn"}
    drawn = book_pretrained.figures_of(ROOT / "runs")
    assert book_pretrained._drawn_name(chosen) in drawn


def test_a_picture_without_a_caption_says_what_its_records_measured() -> None:
    pytest.importorskip("sphinx")
    import book_pretrained

    chosen = book_pretrained.records_of(ROOT / "runs", "pretrained", "python-packages", ["yarn"])
    caption = book_pretrained.caption(chosen)
    for words in (
        "`SmolLM2-135M-Instruct.Q4_1` under YaRN.", "trained it on 8,192 tokens",
        "nothing was trained here", "16 windows", "11 prompts",
    ):  # fmt: skip
        assert words in caption
    both = book_pretrained.records_of(ROOT / "runs", "pretrained", "python-packages", trained=True)
    assert "under NoPE, RoPE." in book_pretrained.caption(both)
    assert "after more training" in book_pretrained.caption(both)
    short = book_pretrained.records_of(ROOT / "runs", "pretrained", "stdlib", ["pi"])
    assert "prompts" not in book_pretrained.caption(short)


def test_a_variant_without_hidden_numbers_has_no_whiskers() -> None:
    """Its share is missing at every length, which leaves nothing to draw."""
    path = next((ROOT / "runs" / "pretrained").glob("*self_extend*/pretrained.json"))
    record = json.loads(path.read_text())
    record["outcomes"]["adapted"]["needles"] = None
    assert figures.whiskers([record])
    figure = figures.several([record])
    drawn = [len(lines.get_segments()) for lines in figure.axes[1].collections]
    assert drawn == [len(record["settings"]["lengths"]), 0]


def test_rope_with_another_base_has_a_line_before_training() -> None:
    paths = (ROOT / "runs" / "pretrained").glob("*/pretrained.json")
    records = [json.loads(path.read_text()) for path in paths]
    record = next(one for one in records if one["settings"]["pe"] == "rope")

    def labels() -> list[str]:
        return [str(line.get_label()) for line in figures.several([record]).axes[0].get_lines()]

    assert not any("before training" in label for label in labels()), "it is the untouched model"
    record["settings"]["options"] = {"theta": 1e6}
    assert "RoPE, theta 1e+06, before training" in labels()
