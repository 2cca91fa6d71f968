"""The numbers behind the book's explanatory pictures, and what its pages state in words."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

import pe
from pe import figures
from pe.encodings.yarn import YaRN, magnitude, rotations_index

ROOT = Path(__file__).parents[1]
import pictures  # noqa: E402
from pictures import common, nope, pope, problem, rope, yarn  # noqa: E402

BOOK = ROOT / "book"
PAGES = {
    str(path.relative_to(BOOK).with_suffix("")): path.read_text(encoding="utf-8")
    for path in sorted(BOOK.rglob("*.md"))
    if path.relative_to(BOOK).parts[0] not in ("notebooks", "runs", "_generated")
}
METHODS = [page for page in PAGES if page.startswith("methods/") and page != "methods/index"]


def pair(name: str, q: torch.Tensor, k: torch.Tensor, distance: int) -> float:
    """One logit, query `distance` after the key."""
    return float(common.logits_by_distance(name, q, k, distance + 1)[distance])


# ---------------------------------------------------------------- pictures as such


def test_every_picture_is_drawn_and_used_on_a_page(site: Path) -> None:
    used = set(re.findall(r"```\{picture\} ([\w-]+)", "\n".join(PAGES.values())))
    kinds = ("perplexity-by-length", "loss-curves", "loss-by-position")
    kinds += tuple(f"{path.stem}-" for path in (ROOT / "studies").glob("*"))  # files and folders
    of_records = {name for name in used if name.startswith(kinds)} - set(pictures.PICTURES)
    assert used - of_records == set(pictures.PICTURES)
    drawn = site.parents[1] / "book" / "_generated"
    for name in pictures.PICTURES:
        text = (drawn / f"{name}.svg").read_text()
        assert text.count("<path") > 5, name
        assert len(text) < 150_000, name


@pytest.mark.parametrize("name", ["order", "nope-counting", "pope-what-where"])
def test_a_picture_is_the_same_whatever_ran_before(name: str) -> None:
    def draw() -> str:
        with figures.style():
            return figures.svg(pictures.PICTURES[name]())

    torch.manual_seed(1)
    first = draw()
    torch.manual_seed(2)
    assert draw() == first


# ---------------------------------------------------------------- the problem


def test_order_is_invisible_without_an_encoding_and_visible_with_rope() -> None:
    numbers = problem.order_numbers()
    first, second = numbers["nope"]
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    first, second = numbers["rope"]
    assert (first - second).abs().max() > 0.5


def test_self_attention_without_a_mask_commutes_with_reordering_at_any_depth() -> None:
    tokens = torch.tensor([4, 9, 4, 17, 2, 30])
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    plain = problem._random_decoder(tokens, 3, seed=0, causal=False)
    moved = problem._random_decoder(tokens[order], 3, seed=0, causal=False)
    torch.testing.assert_close(moved, plain[order], rtol=0, atol=1e-12)


def test_what_a_causal_stack_without_encoding_knows() -> None:
    numbers = problem.causal_numbers(depths=(1, 2, 4), seeds=6)
    for key in ("shuffled", "doubled"):
        assert numbers[key][0].max() < 1e-13, "one layer sees proportions"
        assert numbers[key][1:].min() > 1e-4, "two layers see more"
    assert numbers["constant"].max() < 1e-13, "a repeated token is invisible at any depth"


def test_the_exercise_with_abc_and_ababcc() -> None:
    short, long = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 1, 2, 3, 3])
    ends = [[problem._random_decoder(t, n, 0)[-1] for t in (short, long)] for n in (1, 2)]
    torch.testing.assert_close(*ends[0], rtol=0, atol=1e-13)
    assert (ends[1][0] - ends[1][1]).norm() > 1e-3


def test_the_bound_on_the_largest_attention_weight_is_reached() -> None:
    bound, n = 2.0, 50
    logits = torch.full((n,), -bound, dtype=torch.float64)
    logits[7] = bound
    expected = 1 / (1 + (n - 1) * math.exp(-2 * bound))
    assert float(logits.softmax(0).max()) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------- NoPE


def test_counting_is_exact_in_float32_and_fails_in_bfloat16_where_the_page_says() -> None:
    numbers = nope.counting_numbers()
    t = torch.arange(1, 2049, dtype=torch.float64)
    torch.testing.assert_close(numbers["signal"], 1 / t, rtol=1e-12, atol=0)
    assert torch.equal(numbers["float32"], t)
    assert not torch.equal(numbers["bfloat16"], t)
    first = nope.first_confusion()
    assert f"really coincide are {first} and {first + 1}" in PAGES["methods/nope"]
    assert "guarantees 127 positions" in PAGES["methods/nope"]
    assert numbers["signal"][:127].bfloat16().unique().numel() == 127


# ---------------------------------------------------------------- RoPE


def test_rope_logits_are_constant_along_diagonals() -> None:
    q, k = (common.randn(1, 32, seed=s).expand(24, -1) for s in (1, 2))
    turned_q, turned_k = common.rotated("rope", q, k)
    logits = turned_q @ turned_k.T
    torch.testing.assert_close(logits[1:, 1:], logits[:-1, :-1], rtol=0, atol=1e-10)


def test_rope_in_polar_form_as_the_pope_page_writes_it() -> None:
    d, distance = 32, 11
    q, k = common.randn(1, d, seed=3), common.randn(1, d, seed=4)
    polar_q = torch.complex(q[0, : d // 2], q[0, d // 2 :])
    polar_k = torch.complex(k[0, : d // 2], k[0, d // 2 :])
    where = -distance * common.frequencies("rope", d)
    what = polar_k.angle() - polar_q.angle()
    formula = (polar_q.abs() * polar_k.abs() * (where + what).cos()).sum() / math.sqrt(d)
    assert pair("rope", q, k, distance) == pytest.approx(float(formula), abs=1e-10)


def test_the_two_layouts_differ_by_the_permutation_on_the_page() -> None:
    d, x = 16, common.randn(1, 1, 9, 16, seed=5)
    order = [*range(0, d, 2), *range(1, d, 2)]
    positions = torch.arange(9)
    half, interleaved = (
        pe.encoding("rope", head_dim=d, num_heads=1, layout=layout)
        for layout in ("half", "interleaved")
    )
    one = half.rotate(x[..., order], x, positions, positions)[0]
    two = interleaved.rotate(x, x, positions, positions)[0][..., order]
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_wavelengths_and_turns_as_the_picture_shows_them() -> None:
    wavelength = 2 * math.pi / common.frequencies("rope", 32)
    assert float(wavelength[0]) == pytest.approx(2 * math.pi)
    assert float(wavelength[-1]) == pytest.approx(2 * math.pi * 1e4 ** (1 - 2 / 32))
    assert rope.unturned_pairs(32, 256) == 9  # open from pair 7 on
    assert wavelength[6] < 256 < wavelength[7]


def test_the_rope_bound_holds_and_content_can_put_the_peak_anywhere() -> None:
    d = 64
    omega = common.frequencies("rope", d)
    for seed in range(5):
        q, k = common.randn(1, d, seed=2 * seed), common.randn(1, d, seed=2 * seed + 1)
        q_pairs = torch.complex(q[0, : d // 2], q[0, d // 2 :])
        k_pairs = torch.complex(k[0, : d // 2], k[0, d // 2 :])
        h = torch.cat([q_pairs.conj() * k_pairs, torch.zeros(1)])
        for distance in (0, 1, 17, 400):
            terms = torch.polar(torch.ones_like(omega), -distance * omega)
            bound = h.diff().abs().max() * terms.cumsum(0).abs().sum()
            assert abs(pair("rope", q, k, distance)) * math.sqrt(d) <= float(bound)
    numbers = rope.decay_numbers(favourite=300)
    assert int(numbers["chosen"].argmax()) == 300
    assert float(numbers["chosen"][300]) == pytest.approx(1)
    assert float(numbers["equal"][0]) == pytest.approx(1)
    assert float(numbers["bound"][0]) == pytest.approx(1)
    assert numbers["bound"][500:].max() < 0.5


# ---------------------------------------------------------------- YaRN


def test_the_table_of_small_lengths_is_computed_from_the_formula() -> None:
    row = r"^\| ([\d,]+) \| (-?\d+) \| (-?\d+) \| (-?\d+) \| (-?\d+) \|"
    rows = re.findall(row, PAGES["methods/yarn"], re.MULTILINE)
    assert len(rows) == 7
    for length, *stated in rows:
        tokens = int(length.replace(",", ""))
        low = math.floor(rotations_index(32, 32, 1e4, tokens))
        high = math.ceil(rotations_index(1, 32, 1e4, tokens))
        assert [int(value) for value in stated] == [low, high, max(low, 0), min(high, 31)]
        if high > max(low, 0):
            assert yarn.cutoffs(32, tokens) == (max(low, 0), high)


@pytest.mark.parametrize("length", [3, 6])
def test_tiny_lengths_slow_every_pair_but_the_first(length: int) -> None:
    ratio = yarn.yarn_ratios(32, length, 8.0)["YaRN"]
    assert float(ratio[0]) == 1
    torch.testing.assert_close(ratio[1:], torch.full_like(ratio[1:], 1 / 8))


def test_yarn_by_hand_against_the_package() -> None:
    d, length, s = 128, 4096, 16.0
    ratios = yarn.yarn_ratios(d, length, s)
    index = [d * math.log(length / (2 * math.pi * b)) / (2 * math.log(1e4)) for b in (32, 1)]
    low, high = math.floor(index[0]), math.ceil(index[1])
    assert (low, high) == yarn.cutoffs(d, length) == (20, 46)
    for i, ratio in enumerate(ratios["YaRN"].tolist()):
        keep = 1 - min(max((i - low) / (high - low), 0), 1)
        assert ratio == pytest.approx(keep + (1 - keep) / s, rel=1e-12)
    new_base = 1e4 * s ** (d / (d - 2))
    omega = new_base ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    torch.testing.assert_close(ratios["NTK"], omega / common.frequencies("rope", d))
    assert float(ratios["NTK"][-1]) == pytest.approx(1 / s)


def test_yarns_factor_enters_the_logits_squared() -> None:
    q, k = common.randn(1, 1, 5, 32, seed=1), common.randn(1, 1, 5, 32, seed=2)
    positions = torch.arange(5)
    logits = []
    for options in ({}, {"attention_factor": 1.0}):
        yarn = pe.encoding(
            "yarn", head_dim=32, num_heads=1, original_length=256, factor=8.0, **options
        )
        turned_q, turned_k = yarn.rotate(q, k, positions, positions)
        logits.append(turned_q @ turned_k.mT)
    m = 0.1 * math.log(8.0) + 1
    assert magnitude(8.0) == YaRN(256, 8.0).magnitude == pytest.approx(m)
    torch.testing.assert_close(logits[0], logits[1] * m**2)


# ---------------------------------------------------------------- PoPE


def test_pope_is_the_formula_on_its_page() -> None:
    d, distance = 16, 9
    q, k = common.randn(1, d, seed=3), common.randn(1, d, seed=4)
    omega = 1e4 ** -(torch.arange(d, dtype=torch.float64) / d)
    what = torch.nn.functional.softplus(q) * torch.nn.functional.softplus(k)
    formula = (what[0] * (-distance * omega).cos()).sum() / math.sqrt(d)
    assert pair("pope", q, k, distance) == pytest.approx(float(formula), abs=1e-10)


def test_pope_keys_point_where_position_says_and_rope_keys_do_not() -> None:
    position = 3
    points = pope.plane_numbers(position)
    angles = {name: torch.atan2(xy[:, 1], xy[:, 0]) for name, xy in points.items()}
    expected = torch.full((6,), position * 1e4 ** (-1 / 8), dtype=torch.float64)
    torch.testing.assert_close(angles["pope"], expected)
    assert angles["rope"].std() > 0.5


def test_content_moves_ropes_peak_and_leaves_popes_at_home() -> None:
    numbers = pope.what_where_numbers()
    reach = numbers["pope"].shape[1] // 2
    assert numbers["pope"].argmax(1).tolist() == [reach] * 12
    assert len(set(numbers["rope"].argmax(1).tolist())) >= 9


def test_the_kernel_of_zero_contents_and_its_logarithmic_estimate() -> None:
    numbers = pope.kernel_numbers(head_dim=64)
    assert float(numbers["pope"][0]) == pytest.approx(math.sqrt(64) * math.log(2) ** 2)
    assert float(numbers["rope"][0]) == pytest.approx(float(numbers["pope"][0]))
    error = numbers["pope"] - numbers["estimate"]
    assert float(error[8:].mean().abs()) < 0.1
    assert float(error[8:].square().mean().sqrt()) < 0.25
    zeros = torch.zeros(1, 64, dtype=torch.float64)
    assert float(common.logits_by_distance("rope", zeros, zeros, 9).abs().max()) == 0


def test_the_exercise_on_attending_to_the_previous_token() -> None:
    """delta = w - 2 pi lies in the bounds and puts a channel's peak one token back."""
    omega = 1e4 ** -(torch.arange(16, dtype=torch.float64) / 16)
    delta = omega - 2 * math.pi
    assert ((delta >= -2 * math.pi) & (delta <= 0)).all()
    torch.testing.assert_close((-omega + delta).cos(), torch.ones_like(omega))


# ---------------------------------------------------------------- pitfalls


@pytest.mark.parametrize("name", ["rope", "yarn", "pope"])
def test_casting_or_deferred_initialisation_changes_no_angle(name: str) -> None:
    def build() -> pe.encodings.Encoding:
        return pe.encoding(name, head_dim=16, num_heads=1, original_length=64)

    q, positions = torch.randn(1, 1, 3, 16), torch.tensor([255, 4095, 100_001])
    expected = build().rotate(q, q, positions, positions)
    cast = build().to(torch.bfloat16)
    with torch.device("meta"):
        empty = build()
    empty = empty.to_empty(device="cpu")
    empty.reset_parameters()
    for encoding in (cast, empty):
        torch.testing.assert_close(encoding.rotate(q, q, positions, positions), expected)


def test_rope_turns_positions_and_not_heads() -> None:
    rope = pe.encoding("rope", head_dim=16, num_heads=4)
    x, positions, order = torch.randn(1, 4, 6, 16), torch.arange(6), torch.tensor([2, 0, 3, 1])
    plain = rope.rotate(x, x, positions, positions)[0]
    assert torch.equal(rope.rotate(x[:, order], x, positions, positions)[0], plain[:, order])
    flipped = rope.rotate(x.flip(2), x, positions, positions)[0]
    assert not torch.allclose(flipped, plain.flip(2))
    q, k = rope.rotate(x, x, positions + 1000, positions + 1000)
    torch.testing.assert_close(q @ k.mT, plain @ plain.mT, rtol=0, atol=1e-4)


def test_a_delta_on_or_beyond_its_bound_is_stopped_outward_and_free_inward() -> None:
    pope = pe.encoding("pope", head_dim=4, num_heads=2, num_kv_heads=1)
    q, k, here = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 3, 4), torch.arange(3)
    for start in (0.0, 0.1, -2 * math.pi, -7.0):
        seen = []
        for sign in (1, -1):
            with torch.no_grad():
                pope.delta.fill_(start)
            pope.zero_grad()
            turned_q, turned_k = pope.rotate(q, k, here, here)
            (sign * (turned_q @ turned_k.mT).tril(-1).sum()).backward()
            step = -pope.delta.grad
            inward = step <= 0 if start >= 0 else step >= 0
            assert inward.all()
            seen.append(step != 0)
        assert (seen[0] | seen[1]).all(), "a step back inside is never stopped"


def test_pope_widens_queries_and_keys_only_and_turns_keys_by_key_head() -> None:
    pope = pe.encoding("pope", head_dim=4, num_heads=6, num_kv_heads=2)
    assert pope.delta.shape == (2, 4)
    q, k = torch.randn(1, 6, 3, 4), torch.randn(1, 2, 3, 4)
    turned_q, turned_k = pope.rotate(q, k, torch.arange(3), torch.arange(3))
    assert turned_q.shape == (1, 6, 3, 8)
    assert turned_k.shape == (1, 2, 3, 8)


@pytest.mark.parametrize(("spec", "word"), [("nope+rope", "nope"), ("yarn+pope", "pope")])
def test_what_the_pages_call_refused_is_refused_by_name(spec: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        pe.encoding(spec, head_dim=16, num_heads=1, original_length=64)


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize("method", METHODS)
def test_method_pages_have_the_same_order(method: str) -> None:
    headings = re.findall(r"^## (.+)$", PAGES[method], re.MULTILINE)
    expected = [
        "The idea in three sentences", "Derivation", "The code", "Cost",
        "What its authors claim", "What we measured", "When to use it", "Pitfalls",
        "How it combines", "Summary", "Exercises",
    ]  # fmt: skip
    assert [h for h in headings if h in expected] == expected
    idea = PAGES[method].split("## The idea in three sentences")[1].split("##")[0]
    assert len(re.findall(r"\.(?=\s)", idea)) == 3


def test_pages_cite_known_papers_and_name_their_arxiv_numbers() -> None:
    bibliography = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    known = dict(re.findall(r"@\w+\{(\w+),(.*?)\n\}", bibliography, re.DOTALL))
    for name, page in PAGES.items():
        for key in re.findall(r"\{cite:\w\}`(\w+)`", page):
            assert key in known, (name, key)
        for number in re.findall(r"arXiv:(\d{4}\.\d{5})", page):
            assert number in bibliography, (name, number)


def test_labels_of_equations_are_unique() -> None:
    labels = re.findall(r"^ *:label: (\S+)", "\n".join(PAGES.values()), re.MULTILINE)
    assert len(labels) == len(set(labels)) > 20
