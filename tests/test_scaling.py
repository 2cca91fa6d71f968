"""The scaling record: what its script makes of measurements, and what the page shows of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "book" / "_ext"), str(ROOT / "benchmarks")]

pytest.importorskip("sphinx")

import book_scaling  # noqa: E402
import profile_step  # noqa: E402
import scaling  # noqa: E402


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
    {"what": "memory", "name": "1.2B", "options": "FSDP", "reason": scaling.TIME_UP},
]  # fmt: skip


def test_a_gpu_of_several_is_compared_with_one_that_does_the_same_job() -> None:
    shares = [one.get("share") for one in scaling.with_shares(ROWS)]
    assert shares == [1.0, 0.95, None, None]
    assert scaling.agreement(ROWS) == [
        {"what": "speed", "name": "360M", "options": "", "processes": 2, "largest_difference": 0.05}
    ]
    assert "95.0%" in scaling.table(scaling.with_shares(ROWS))


@pytest.mark.parametrize("gpus", [1, 2])
def test_every_job_has_a_recipe_and_one_gpu_needs_no_fsdp(gpus: int) -> None:
    jobs = scaling.jobs(gpus, mini=False)
    assert {job["name"] for job in jobs} == {"34M", "125M", "360M", "1.2B"}
    for job in jobs:
        recipe = scaling.recipe_of(job)
        assert not recipe.batch_size % (gpus * (recipe.micro_batch_size or 1))
        assert gpus > 1 or not recipe.fsdp
    assert any(scaling.recipe_of(job).fsdp for job in jobs) == (gpus > 1)


def test_the_page_shows_the_newest_record_or_says_that_there_is_none(tmp_path: Path) -> None:
    assert book_scaling.newest(tmp_path) is None
    assert book_scaling.text("speed", None) == "Not measured yet."
    record = {
        "rows": scaling.with_shares(ROWS), "agreement": scaling.agreement(ROWS),
        "hardware": {"count": 2, "name": "NVIDIA H200"}, "versions": {"torch": "2.11.0"},
        "code": {"commit": "a" * 40}, "created": "2026-11-30T00:00:00+00:00",
        "failure": {"message": "process 1 of 2 was killed", "seconds_until_all_had_ended": 30.2,
                    "went_on_from": [0, 40], "largest_difference_of_losses": 1e-6},
    }  # fmt: skip
    for date in ("2026-11-29", "2026-11-30"):
        (tmp_path / f"{date}-x-scaling.json").write_text(json.dumps(record | {"created": date}))
    newest = book_scaling.newest(tmp_path)
    assert newest is not None
    assert newest["created"] == "2026-11-30"
    speed = book_scaling.text("speed", newest)
    assert "380,000 |" in speed
    assert "95% |" in speed
    assert "2 × NVIDIA H200, torch 2.11.0, commit `aaaaaaaaaaaa`, 2026-11-30." in speed
    assert scaling.TIME_UP in book_scaling.text("memory", newest)
    told = book_scaling.text("agreement", newest)
    assert "5.0e-02" in told
    assert "went on from step 40" in told
    with pytest.raises(ValueError, match="unknown part of the scaling record 'sped'"):
        book_scaling.text("sped", newest)


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
    assert profile_step.groups(result)["nothing"] == pytest.approx(products)
    text = profile_step.report(recipe, result, 5)
    assert f"a step of {tokens:,} tokens" in text
    assert "MFU 25.0%" in text
    assert "50% of it reached" in text


def test_steps_are_shown_beside_the_first_of_them(tmp_path: Path) -> None:
    rows = [
        {"system": f"pe:{spec}", "tokens_per_second": rate, "peak_memory_gib": 1.0}
        for spec, rate in (("nope", 1000), ("nope+window:512", 2500))
    ]
    record = {
        "rows": rows, "recipe": "tiny", "batch": [4, 64], "rounds": 3, "created": "2026-01-02T03",
        "hardware": {"count": 1, "name": "card"}, "versions": {"torch": "2"},
        "code": {"commit": "a" * 40},
    }  # fmt: skip
    (tmp_path / "2026-01-02-x-windows-step.json").write_text(json.dumps(record))
    known = book_scaling.newest(tmp_path, "windows-step")
    assert known == record
    assert "2,500" in book_scaling.steps(record)
    assert "2.50" in book_scaling.steps(record)
