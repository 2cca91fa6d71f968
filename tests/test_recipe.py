from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pe.recipes.named import DEMO, RECIPES, recipe
from pe.recipes.recipe import NEW_FIELD_DEFAULTS, NOT_IDENTITY, Recipe
from pe.runs import find

# A valid other value for every field of the demo recipe.
OTHER: dict[str, Any] = {
    "name": "mine", "pe": "nope", "pe_options": {"theta": 500.0}, "seed": 1,
    "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 353, "qk_norm": True,
    "corpus": "tinystories", "tokenizer": "gpt2", "vocab_size": 8192, "context_length": 192,
    "reset_positions": True, "mask_documents": True,
    "steps": 300, "batch_size": 32, "micro_batch_size": 8, "learning_rate": 3e-3,
    "min_learning_rate": 1e-4, "warmup_steps": 30, "schedule": "wsd", "decay_steps": 10,
    "weight_decay": 0.2, "beta1": 0.8, "beta2": 0.99, "grad_clip": 2.0, "precision": "bfloat16",
    "compile": "on", "checkpoint_every": 7, "log_every": 3, "validate_every": 9,
    "evaluation_lengths": (256,), "target_tokens": 64, "evaluation_windows": 3,
    "joint_norm": "qk", "softmax_scale": 0.1, "start_from": "rope-s0-1a2b3c4d", "start_step": 5,
    "start_state": "all", "keep_states": (40, 60),
    "keep_steps": (40, 60), "retrieval_share": 0.02, "retrieval_samples": 5,
    "fit_temperature": True, "deterministic": True, "encoding_rate": 3.0, "embedding_std": 0.5,
    "first_token": True, "retrieval_tasks": ("multikey",), "dropout": 0.1, "keep_best": True,
    "activation_checkpointing": True, "fsdp": True, "separator": "blank-lines", "tune": "encoding",
}  # fmt: skip


def test_every_field_has_another_value_here() -> None:
    assert OTHER.keys() == {f.name for f in dataclasses.fields(Recipe)}
    for name, value in OTHER.items():
        assert getattr(DEMO, name) != value, name


@pytest.mark.parametrize("name", sorted(OTHER))
def test_the_hash_changes_with_what_is_trained_and_nothing_else(name: str) -> None:
    started = name.startswith("start_st") or name == "tune"
    also = {"start_from": OTHER["start_from"]} if started else {}
    also |= {"start_step": 5} if name == "start_state" else {}
    also |= {"schedule": "wsd"} if name == "decay_steps" else {}
    also |= {"retrieval_share": 0.02} if name == "retrieval_tasks" else {}
    base = dataclasses.replace(DEMO, **also)
    changed = dataclasses.replace(base, **{name: OTHER[name]})
    same = changed.config_hash() == base.config_hash()
    judged_or_watched = {
        "name", "evaluation_lengths", "target_tokens", "evaluation_windows", "log_every",
        "validate_every", "checkpoint_every", "keep_steps", "keep_states",
        "retrieval_samples", "fit_temperature", "keep_best", "activation_checkpointing", "fsdp",
    }  # fmt: skip
    assert same == (name in judged_or_watched)
    assert set(NOT_IDENTITY) == judged_or_watched


def test_the_hash_is_the_same_in_every_process_and_version() -> None:
    # Pinned: with a changed hash every recorded run looks like one that was never done. Who adds
    # a field leaves it out of the hash where it has the value that all earlier runs had.
    first = {name: value for name, value in OTHER.items() if name not in NEW_FIELD_DEFAULTS}
    first |= {"context_length": 128}
    assert Recipe.from_dict(first).config_hash() == "20a43202"
    defaults = {f.name: f.default for f in dataclasses.fields(Recipe)}
    assert {name: defaults[name] for name in NEW_FIELD_DEFAULTS} == NEW_FIELD_DEFAULTS
    assert recipe("demo", pe="yarn", pe_options={"factor": 8.0, "alpha": 1.0}).config_hash() == (
        recipe("demo", pe="yarn", pe_options={"alpha": 1.0, "factor": 8.0}).config_hash()
    )
    code = "from pe.recipes.named import DEMO; print(DEMO.config_hash())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )  # fmt: skip
        assert done.stdout.strip() == DEMO.config_hash()


def test_a_run_that_starts_from_another_is_named_by_its_name_wherever_that_lies() -> None:
    name = "rope-s0-1a2b3c4d"
    hashes = {
        recipe("demo", pe="nope", start_from=path, start_step=300).config_hash()
        for path in (name, f"local/{name}", f"/somewhere/runs/local/{name}", f"./{name}/")
    }
    assert len(hashes) == 1
    assert recipe("demo", pe="nope", start_from=name).config_hash() not in hashes


@pytest.mark.parametrize("pe", ["rope", "rope+alibi", "my.module:Enc", "../../etc", "a b/c\\d\n"])
def test_a_run_name_is_one_safe_folder(pe: str) -> None:
    name = dataclasses.replace(DEMO, pe=pe, seed=12).run_name()
    assert re.fullmatch(r"[A-Za-z0-9_.-]+-s12-[0-9a-f]{8}", name)
    assert Path("runs", "local", name).resolve().parent == Path("runs", "local").resolve()


def test_run_names_tell_encodings_apart() -> None:
    assert recipe("demo", pe="rope+alibi").run_name().startswith("rope_alibi-s0-")
    names = {recipe("demo", pe=pe, seed=s).run_name() for pe in ("rope", "nope") for s in (0, 1)}
    assert len(names) == 4


@pytest.mark.parametrize("base", list(RECIPES.values()), ids=list(RECIPES))
def test_a_recipe_survives_json(base: Recipe) -> None:
    again = Recipe.from_dict(json.loads(json.dumps(base.to_dict())))
    assert again == base
    assert again.config_hash() == base.config_hash()


def test_from_dict_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"learning_rat.*did you mean 'learning_rate'"):
        Recipe.from_dict(DEMO.to_dict() | {"learning_rat": 1.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dmeo"}, r"unknown recipe 'dmeo' \(did you mean 'demo'\?\)"),
        ({"step": 3}, r"unknown recipe field 'step' \(did you mean 'steps'\?\)"),
        ({"steps": "abc"}, "steps: expected a whole number, got 'abc'"),
        ({"steps": 3.5}, "steps: expected a whole number, got 3.5"),
        ({"steps": True}, "steps: expected a whole number, got True"),
        ({"steps": 0}, "steps: expected at least 1, got 0; only a run with start_from"),
        ({"learning_rate": "1e-3"}, "learning_rate: expected a number, got '1e-3'; write 0.001"),
        ({"dropout": "nan"}, "dropout: expected a number, got 'nan'$"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a number, got nan"),
        ({"weight_decay": float("inf")}, "weight_decay: expected a number, got inf"),
        ({"weight_decay": -0.1}, "weight_decay: expected 0 or more"),
        ({"qk_norm": 1}, "qk_norm: expected True or False, got 1"),
        ({"pe_options": [1]}, r"pe_options: expected a dictionary, got \[1\]"),
        ({"pe_options": {"theta": float("nan")}}, "theta: expected what JSON can hold.*, got nan"),
        ({"pe_options": {"theta": 1j}}, "pe_options: theta: expected what JSON can hold"),
        ({"seed": -1}, "seed: expected 0 or more, got -1"),
        ({"schedule": "cosin"}, r"unknown schedule 'cosin' \(did you mean 'cosine'\?\)"),
        ({"precision": "fp16"}, "unknown precision 'fp16'"),
        ({"num_attention_heads": 3}, "hidden_size: 128 does not divide into 3 heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads: 4 is not a multiple of"),
        ({"min_learning_rate": 1.0}, r"min_learning_rate: expected 0 to learning_rate 0\.004"),
        ({"steps": 260, "warmup_steps": 200, "decay_steps": 100}, "steps: 260 is less than"),
        ({"micro_batch_size": 5}, "micro_batch_size: 5 does not divide batch_size 8"),
        ({"start_step": 5}, "start_step: 5 has no effect without start_from"),
        ({"joint_norm": "v"}, "unknown joint_norm 'v'"),
        ({"softmax_scale": -1.0}, "softmax_scale: expected 0 or more, got -1.0"),
        ({"keep_steps": [0]}, r"keep_steps\[0\]: expected more than 0, got 0"),
        ({"keep_states": [9, 9]}, "keep_states: 9 is there twice"),
        ({"dropout": 1.0}, "dropout: expected less than 1, got 1.0"),
        ({"steps": 0, "warmup_steps": 0, "start_from": "a", "dropout": 0.1}, "dropout: no effect"),
        ({"keep_best": True, "validate_every": 0}, "keep_best: no effect with validate_every 0"),
        ({"keep_steps": [481]}, "keep_steps: 481 is not a step of the run; expected 1 to"),
        ({"evaluation_lengths": 0.5}, "evaluation_lengths: expected a list, got 0.5"),
        ({"evaluation_lengths": ["x"]}, r"lengths\[0\]: expected a whole number, got 'x'"),
        ({"beta2": 1.0}, "beta2: expected less than 1, got 1.0"),
        ({"retrieval_share": 1.5}, "retrieval_share: expected at most 1, got 1.5"),
    ],
)
def test_a_mistake_is_named_with_its_value(arguments: dict[str, Any], message: str) -> None:
    arguments = {"name": "demo"} | arguments
    with pytest.raises(ValueError, match=message):
        recipe(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluation_lengths": []}, r"evaluation_lengths: expected at least 1, got \[\]"),
        ({"evaluation_lengths": [128, 512]}, "evaluation_lengths: 128 leaves no context before"),
        ({"evaluation_lengths": [512, 512]}, "evaluation_lengths: 512 is there twice"),
        ({"target_tokens": 256}, "context_length: 256 leaves no context before the 256 tokens"),
        ({"fit_temperature": True, "evaluation_lengths": [256]}, "fit_temperature: has no effect"),
    ],
)
def test_what_evaluation_would_refuse_is_refused_before_training(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        recipe("demo", **arguments)


def test_a_setting_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="decay_steps: 10 has no effect under the schedule 'cos"):
        recipe("demo", decay_steps=10)
    assert recipe("demo", decay_steps=10, schedule="wsd").decay_steps == 10


def test_a_single_value_is_a_list_of_one() -> None:
    one = recipe("demo", evaluation_lengths=512, keep_steps=40, retrieval_samples=1)
    many = recipe("demo", evaluation_lengths=[512], keep_steps=[40], retrieval_samples=1)
    assert one == many


def test_replacing_a_field_is_checked_like_a_new_recipe() -> None:
    with pytest.raises(ValueError, match="steps: expected 0 or more, got -3"):
        dataclasses.replace(DEMO, steps=-3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEMO.steps = 3  # type: ignore[misc]


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"steps: .*; batch_size: .*"):
        recipe("demo", steps="x", batch_size=None)


def test_a_whole_number_is_a_number_and_the_same_recipe() -> None:
    assert recipe("demo", grad_clip=1) == recipe("demo", grad_clip=1.0)
    assert recipe("demo", grad_clip=1).config_hash() == recipe("demo").config_hash()


@pytest.mark.parametrize(
    ("pe", "spelled"),
    [
        ("rope", "rope "),
        ("rope+alibi", " rope + alibi"),
        ("3*(rope+window:512), nope", "3 *( rope + window:512 ),nope"),
        ("rope(theta=1e6, layout=interleaved)", "rope( theta = 1e6,layout=interleaved )"),
    ],
)
def test_spaces_in_a_spec_do_not_make_another_run(pe: str, spelled: str) -> None:
    assert recipe("demo", pe=spelled) == recipe("demo", pe=pe)
    assert recipe("demo", pe=pe).pe == pe


def test_a_space_within_a_name_stays_a_mistake() -> None:
    assert recipe("demo", pe="rope alibi").pe == "rope alibi"


def test_recorded_recipes_are_those_of_the_same_spec_today() -> None:
    for run in find(Path(__file__).parents[1] / "runs"):
        old = run.read()["recipe"]
        assert recipe("demo", pe=old["pe"]).pe == old["pe"]


def test_lengths_keep_their_multiples_of_the_context() -> None:
    changed = recipe("demo", context_length=64)
    assert changed.evaluation_lengths == (64, 128, 256, 512, 1024)
    assert changed.target_tokens == 32  # the first target has half the shortest length before it
    assert recipe("demo", context_length=512).evaluation_lengths == (512, 1024, 2048, 4096, 8192)
    assert recipe("demo", context_length=512).target_tokens == 128
    given = recipe("demo", context_length=64, evaluation_lengths=[64, 600])
    assert (given.evaluation_lengths, given.target_tokens) == ((64, 600), 32)


def test_warmup_and_decay_keep_their_share_of_the_steps() -> None:
    assert recipe("demo", steps=520).warmup_steps == 52
    assert recipe("demo", steps=1).warmup_steps == 0
    assert recipe("demo", steps=520, warmup_steps=3).warmup_steps == 3
    assert recipe("demo").decay_steps == recipe("demo", steps=520).decay_steps == 0


def test_the_lowest_rate_keeps_its_share_of_the_highest() -> None:
    changed = recipe("demo", learning_rate=1e-2)
    assert changed.min_learning_rate == 1e-3  # exactly: it is part of the hash
    assert recipe("demo", learning_rate=1e-2, min_learning_rate=0.0).min_learning_rate == 0.0
    assert recipe("demo", learning_rate=DEMO.learning_rate) == DEMO


def test_auto_is_a_recipe_this_machine_can_train() -> None:
    from pe import devices

    assert recipe("auto").name == ("tiny" if devices.choose().type == "cuda" else "demo")


def test_recipes_need_no_torch() -> None:
    code = "import sys, pe.recipes.named, pe.runs; sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
