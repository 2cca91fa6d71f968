"""Studies whose runs branch from one another, or start from runs of other studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from study_tools import BRANCHING, CHAIN, SMALL, WSD, by_label, carry_out, write
from tiny_training import assert_same_weights, lines, write_corpus

import pe
from pe.notebooks import page
from pe.notebooks.parameters import configure
from pe.recipes.command import notebook_parameters
from pe.results.rows import grouped
from pe.runs import Run, RunError
from pe.study import load_plan, run_study


def test_the_budgets_study_has_four_budgets_of_each_encoding() -> None:
    plan = by_label(load_plan("budgets"))
    assert list(plan)[:4] == ["rope", "rope@1/8", "rope@1/4", "rope@1/2"]
    parent, half = plan["rope"].recipe, plan["rope@1/2"].recipe
    assert parent.keep_states == (800, 1600, 3200)
    assert (half.start_step, half.steps, half.decay_steps, half.warmup_steps) == (3200, 800, 800, 0)
    assert (half.start_from, half.start_state) == (plan["rope"].name, "all")
    assert plan["rope@1/2"].parent == plan["rope"].key
    assert {p.recipe.start_step + p.recipe.steps for p in plan.values()} == {
        1000, 2000, 4000, 8000,
    }  # fmt: skip
    cost = sum(p.recipe.steps for p in plan.values() if p.recipe.pe == "rope") / parent.steps
    assert cost == pytest.approx(1.175)  # as the file says


def test_branches_of_a_study_are_the_runs_of_those_budgets(tmp_path: Path, own_runs: Path) -> None:
    plan = by_label(load_plan(write(tmp_path, BRANCHING, **WSD)))
    assert list(plan) == ["rope", "rope@1/4", "rope@1/2"]
    carry_out(list(plan.values()))
    for label, steps in (("rope@1/4", 4), ("rope@1/2", 8)):
        folder = tmp_path / label.replace("/", "-")
        folder.mkdir()
        (alone,) = load_plan(write(folder, {"rope": {"pe": "rope"}}, **WSD | {"steps": steps}))
        scratch = Run(own_runs / "alone" / alone.name, alone.recipe)
        pe.train(scratch, quiet=True)
        branch = plan[label].run()
        assert_same_weights(branch, scratch)
        before = steps - branch.recipe.steps
        own = [(step + before, what, loss) for step, what, loss in lines(branch) if step]
        assert own == [line for line in lines(scratch) if line[0] > before]
        assert branch.evaluation() is not None
    assert [g.title for g in grouped([p.run() for p in plan.values()])] == [
        "RoPE", "RoPE, 4 steps", "RoPE, 8 steps",
    ]  # fmt: skip
    assert "weights and optimizer of" in page.plan(plan["rope@1/4"].run()).data


@pytest.mark.parametrize(
    ("run", "more", "message"),
    [
        ({"branches": ["1/2"]}, {}, "branches need a plateau: set schedule: wsd and decay_steps"),
        ({"branches": "1/2"}, WSD, "branches: expected a list, got '1/2'"),
        ({"branches": ["some"]}, WSD, r"branches\[0\]: expected steps, a fraction or a percentage"),
        ({"branches": ["1/8"]}, WSD, "branch a@1/8 of 2 steps would leave after step 1; the plat"),
        ({"branches": [20]}, WSD, "of 20 steps would leave after step 15; .* from 2 to 12"),
    ],
)
def test_branches_that_cannot_be_are_refused(
    tmp_path: Path, run: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_plan(write(tmp_path, {"a": {"pe": "rope"} | run}, **more))


def test_a_run_starts_from_another_study_and_its_start_is_judged(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    (tmp_path / "studies").mkdir()
    monkeypatch.setattr("pe.study.reading.FOLDER", tmp_path / "studies")
    common = {"recipe": "demo", "set": SMALL | {"corpus": str(corpus), "steps": 8}}
    first = common | {"runs": {"rope": {"pe": "rope"}}}
    (tmp_path / "studies" / "first.yaml").write_text(yaml.safe_dump(first))
    longer = {
        "pe": "yarn", "pe_options": {"factor": 2.0}, "start": {"run": "first/rope", "at": "end"},
        "set": {"context_length": 32, "steps": 2, "warmup_steps": 0, "batch_size": 2},
    }  # fmt: skip
    (tmp_path / "studies" / "second.yaml").write_text(
        yaml.safe_dump(common | {"runs": {"yarn": longer}})
    )
    plan = load_plan("second")
    (parent,) = load_plan("first")
    assert plan[0].recipe.start_from == f"first/{parent.name}"
    assert (plan[0].recipe.start_step, plan[0].parent) == (8, None)
    with pytest.raises(RunError, match=f"there is no run 'first/{parent.name}'.* train it first"):
        run_study(plan, workers=1, notebooks=False)
    pe.train(parent.run(), quiet=True)
    carry_out(plan)
    record = plan[0].run().read()
    assert (record["parent"]["study"], record["parent"]["step"]) == ("first", 8)
    conversion = record["conversion"]
    assert conversion["lengths"] == [16, 32]
    assert conversion["before"]["32"]["value"] != conversion["converted"]["32"]["value"]
    for start, message in (
        ({"run": "first/pope", "at": "end"}, "starts from 'first/pope'; runs there .*: rope"),
        ({"run": "first/rope", "at": 4}, "step 4 of 'first/rope', which keeps 8"),
        ({"run": "frist/rope", "at": 4}, "unknown study 'frist'"),
    ):
        content = common | {"runs": {"yarn": longer | {"start": start}}}
        (tmp_path / "studies" / "second.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(ValueError, match=message):
            load_plan("second")


def test_weights_that_are_gone_do_not_keep_a_run_from_being_judged(
    tmp_path: Path, own_runs: Path
) -> None:
    plan = by_label(load_plan(write(tmp_path, CHAIN, checkpoint_every=50)))
    for planned in plan.values():
        pe.train(planned.run(), quiet=True)
    kept = plan["rope"].run().directory / "checkpoints" / "kept"
    kept.rename(kept.with_name("elsewhere"))
    pe.evaluate(plan["dropped"].run(), quiet=True)
    assert plan["dropped"].done()
    assert "conversion" not in plan["dropped"].run().read()


def test_what_follows_another_field_is_said_where_that_one_differs(own_runs: Path) -> None:
    """48 is demo's warmup; left out, 240 steps would get half of it."""
    run = configure(recipe="demo", steps=240, overrides={"warmup_steps": 48})
    given = notebook_parameters(run.recipe, "local")
    assert configure(**given).recipe.to_dict() == run.recipe.to_dict()


def test_every_run_of_extend_can_begin_with_a_rope_model() -> None:
    """As its training will: the model of the scaffold study, in small."""
    config = pe.PEConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, pe="rope",
    )  # fmt: skip
    model = pe.PEForCausalLM(config)
    ids = torch.arange(200)[None] % 32
    plan = [p for p in load_plan("extend") if not p.zero_shot]
    assert {p.recipe.context_length for p in plan} == {4096}
    logits = {}
    for planned in plan:
        r = planned.recipe
        longer = pe.convert(model, r.pe, context_length=256, seed=0, **r.pe_options)
        with torch.no_grad():
            logits[planned.label] = longer(ids).logits
    plain = logits.pop("rope")
    assert len(logits) == 8
    assert all(not torch.equal(found, plain) for found in logits.values())
