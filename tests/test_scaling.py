"""The scaling record: what its script makes of measurements, and what the page shows of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytest.importorskip("sphinx")

import book_scaling  # noqa: E402
import profile_step  # noqa: E402
import scaling  # noqa: E402

from pe.study.plan import load_plan  # noqa: E402

TIME_UP = "not begun within the time"


def row(processes: int, rate: int, **more: Any) -> dict[str, Any]:
    return {
        "what": "speed", "name": "360M", "options": "", "processes": processes, "reason": None,
        "tokens_per_second": rate, "batch": [64, 1024], "parameters": 341_885_952, "mfu": 0.475,
        "peak_memory_gib": 30.5, "estimated_gib": 30.8, "first_step_seconds": 40.0,
        "losses": [9.1, 8.2], **more,
    }  # fmt: skip


ROWS = [
    row(1, 200_000), row(2, 380_000, losses=[9.1, 8.25], mfu=None),
    row(4, 700_000, batch=[128, 1024]),
    {"what": "memory", "name": "1.2B", "options": "FSDP", "processes": 2, "reason": TIME_UP},
]  # fmt: skip


def test_a_gpu_of_several_is_compared_with_one_that_does_the_same_job() -> None:
    shares = [one.get("share") for one in scaling.with_shares(ROWS)]
    assert shares == [1.0, 0.95, None, None]
    assert scaling.agreement(ROWS) == [
        {"what": "speed", "name": "360M", "options": "", "processes": 2,
         "largest_difference": 0.05, "peak_memory_gib": 30.5}
    ]  # fmt: skip
    assert "95.0%" in scaling.table(scaling.with_shares(ROWS))


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_every_job_has_a_recipe_and_what_is_wanted_most_comes_first(gpus: int) -> None:
    plan = list(scaling.stages(gpus, scaling.PARTS, mini=False))
    jobs = [job for stage in plan if stage for share in stage.shares for job in share]
    assert {job["name"] for job in jobs if "name" in job} == {"34M", "125M", "360M", "1.2B"}
    for stage in plan:
        assert stage is None or stage.processes * len(stage.shares) <= gpus
        for job in (job for share in stage.shares for job in share) if stage else ():
            if job["what"] == "reference":
                continue
            recipe = scaling.recipe_of(job)
            each, rest = divmod(recipe.batch_size, stage.processes)
            assert rest == each % min(recipe.micro_batch_size or each, each) == 0
            assert stage.processes > 1 or not recipe.fsdp
    kinds = [stage and (stage.processes, stage.shares[0][0]["what"]) for stage in plan]
    losses = [(count, "losses") for count in (1, 2, 4, 8) if count <= gpus]
    assert kinds[: len(losses)] == losses
    assert (None in kinds) == any(job["what"] == "reference" for job in jobs) == (gpus > 1)


def test_parts_that_were_measured_are_left_out_unless_they_are_named() -> None:
    def names(parts: Any) -> set[str]:
        plan = scaling.stages(2, parts, mini=True)
        shares = [share for stage in plan if stage for share in stage.shares]
        return {f"{job['what']} {job.get('name', '')}" for share in shares for job in share}

    wanted = names(scaling.WANTED)
    assert {"losses 34M", "speed 125M", "memory 1.2B", "profile 360M"} <= wanted
    assert "speed 360M" not in wanted
    assert names(["360M"]) == {"speed 360M"}


def record(day: int, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "rows": scaling.with_shares(rows), "agreement": scaling.agreement(rows),
        "hardware": {"count": 2, "name": "NVIDIA H200"}, "versions": {"torch": "2.11.0"},
        "code": {"commit": "ab"[day % 2] * 40}, "created": f"2026-11-{day}T00:00:00", **more,
    }  # fmt: skip


FAILURE = {
    "message": "process 1 of 2 was killed", "seconds_until_all_had_ended": 30.2,
    "went_on_from": [0, 40], "largest_difference_of_losses": 1e-6,
}  # fmt: skip


SAME = {
    "what": "losses", "name": "34M", "options": "float32", "processes": 2,
    "largest_difference": 0.0, "peak_memory_gib": 4.7,
}  # fmt: skip


def test_the_page_shows_the_newest_measurement_of_each_job(tmp_path: Path) -> None:
    assert book_scaling.records(tmp_path) == []
    assert {book_scaling.text(part, []) for part in book_scaling.PARTS} == {"Not measured yet."}
    old = record(28, ROWS, failure=FAILURE)
    fsdp = row(2, 60_000, what="memory", name="1.2B", options="FSDP", batch=[32, 1024])
    late = {"what": "speed", "name": "360M", "options": "", "processes": 4, "reason": TIME_UP}
    new = record(29, [row(2, 400_000), fsdp, late])
    for name, one in (("2026-11-28-x", old), ("2026-11-29-x", new)):
        (tmp_path / f"{name}-scaling.json").write_text(json.dumps(one))
    known = book_scaling.records(tmp_path)
    assert known == [new, old], "the latest date first"
    speed = book_scaling.text("speed", known)
    assert "400,000 |" in speed
    assert "380,000" not in speed, "an older measurement of the same"
    assert "700,000 |" in speed
    assert "200,000 |" in speed, "what the newer record leaves out"
    assert TIME_UP not in speed, "another record has it"
    for machine in ("aaaaaaaaaaaa`, 2026-11-28.", "bbbbbbbbbbbb`, 2026-11-29."):
        assert f"2 × NVIDIA H200, torch 2.11.0, commit `{machine}" in speed
    assert "60,000 |" in book_scaling.text("memory", known)
    hours = f"{book_scaling.tokens_of(load_plan('paper')) / 400_000 / 3600:.1f} |"
    assert hours in book_scaling.text("cost", known)
    assert TIME_UP in book_scaling.text("memory", [old])
    told = book_scaling.text("agreement", known)
    assert "0.050000 |" in told
    assert "30.5 GiB |" in told
    assert "went on from step 40" in told
    same = book_scaling.text("agreement", [record(29, []) | {"agreement": [SAME]}])
    assert "none in six decimals |" in same
    with pytest.raises(ValueError, match="unknown part of the scaling record 'sped'"):
        book_scaling.text("sped", known)


def test_hours_on_gpus_that_nobody_measured_are_estimated_from_those_measured() -> None:
    shared, fixed = 4e-6, 1e-6  # seconds per token
    measured = {n: 1 / (shared / n + fixed) for n in (1, 2)}
    assert book_scaling.speed(measured, 2) == measured[2]
    assert book_scaling.speed(measured, 8) == pytest.approx(1 / (shared / 8 + fixed))
    assert book_scaling.speed({2: 100.0}, 8) == pytest.approx(400)
    table = book_scaling.text("families", [record(29, ROWS[:2])])
    heads, _, first, *lines = table.split("\n\n")[0].splitlines()
    assert [cell.strip() for cell in heads.split("|")[4:-1]] == [
        "1 GPU", "2 GPUs", "4 GPUs, estimated", "8 GPUs, estimated",
    ]  # fmt: skip
    plan = load_plan("paper")
    tokens = book_scaling.tokens_of(plan[: [p.label for p in plan].index("nope")])
    assert f"| {tokens / 200_000 / 3600:.2f} |" in " ".join(first.split())
    assert sum(int(line.split("|")[2]) for line in (first, *lines)) == len(plan)


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matrix products"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", "attention"),
        ("triton_red_fused__log_softmax__to_copy_prepare_softmax_online_15", "loss"),
        ("triton_per_fused__fused_rms_norm_backward__to_copy_add_view_9", "norms"),
        ("triton_poi_fused__unsafe_view_mul_silu_7", "feed-forward, between products"),
        ("triton_poi_fused__to_copy__unsafe_view_add_cat_mul_split_sub_transpose", "rotation"),
        ("triton_poi_fused__to_copy_view_2", "casts of weights"),
        ("multi_tensor_apply_kernel", "optimizer"),
        ("triton_poi_fused_add_3", profile_step.OTHER),
    ],
)
def test_kernels_of_a_recorded_profile_are_in_their_groups(kernel: str, group: str) -> None:
    assert profile_step.group_of(kernel) == group


def test_the_profile_says_what_the_step_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    import pe

    recipe = pe.recipe("paper")
    peak = 989e12
    monkeypatch.setattr(profile_step, "hardware", lambda: {"name": "NVIDIA H200"})
    tokens = recipe.batch_size * recipe.context_length
    products = profile_step.product_flops(recipe, 1000) / peak * 1000
    result = {
        "parameters": 1000, "flops_per_token": 6.0 * 1000, "step_ms": 4 * products,
        "kernels": [
            {"kernel": "nvjet", "group": "matrix products", "ms": 2 * products, "calls": 1},
            {"kernel": "adam", "group": "optimizer", "ms": products, "calls": 1},
        ],
    }  # fmt: skip
    first, *_, nothing = rows = profile_step.groups(recipe, result)
    assert (nothing["group"], nothing["ms"]) == ("nothing", pytest.approx(products))
    assert first["at_peak_ms"] == pytest.approx(products)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    profiled = row(1, 1, what="profile", groups=rows, step_ms=4 * products)
    assert "| matrix products |" in book_scaling.text("profile", [record(29, [profiled])])
    text = profile_step.report(recipe, result, 5)
    assert f"a step of {tokens:,} tokens" in text
    assert "MFU 25.0%" in text
    assert "50% of it reached" in text
