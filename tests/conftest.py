"""What every test starts from: one thread, no hub, and never the user's own cache."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["pytester", "book_browser"]

# Of a process that imports so much, garbage collection takes a quarter of the time.
gc.set_threshold(50_000, 20, 1_000)

# Before torch is imported anywhere: many workers with many threads each are slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Exactness is promised on the CPU; a GPU is asked for with PE_TEST_GPU=1 (tests/test_gpu.py).
if os.environ.get("PE_TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.pop("PE_DEVICE", None)
    os.environ["TRITON_INTERPRET"] = "1"  # kernels that are asked for run on the CPU
# Triton is for Linux alone. Whatever names its kernels is tested there.
if importlib.util.find_spec("triton") is None:
    here = Path(__file__).parent
    collect_ignore = [
        f.name for f in here.glob("test_*.py") if "attention.kernels" in f.read_text()
    ]
os.environ["HF_HUB_OFFLINE"] = "1"
# Tests start some forty processes. They read the bytecode that this one leaves, where they would
# each compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["HF_DATASETS_OFFLINE"] = "1"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that read the whole guide first.

    ``make test`` gives each worker one stretch of this list (``--dist worksteal``), so one worker
    builds the guide, which takes two minutes, and no other waits for it.
    """
    items.sort(key=lambda item: "site" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Exempt everything that was imported from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of this test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session", autouse=True)
def own_cache(shared_directory: Path) -> Iterator[Path]:
    """``PE_CACHE`` of the session: a corpus is prepared once, not once a test, nor a worker."""
    path = shared_directory / "pe-cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_CACHE", str(path))
        yield path


@pytest.fixture(scope="session", autouse=True)
def one_look_at_the_checkout() -> Iterator[None]:
    """Ask git and hash the package's files once per session, not for every record.

    A test that lets the package be elsewhere gets that place looked at.
    """
    from pe.runs import provenance

    look, here = provenance.code, provenance.__file__
    of_this_checkout = functools.cache(look)

    def code() -> dict[str, Any]:
        return dict(of_this_checkout()) if provenance.__file__ == here else look()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "code", code)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Leave out what makes files outlive a power cut: milliseconds of waiting for each of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Make Triton's interpreter faster (tests/helpers/quick_interpreter.py)."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
            import quick_interpreter

            quick_interpreter.install(patch)
        yield


@pytest.fixture(scope="session")
def site(shared_directory: Path) -> Path:
    """Build the whole guide once per session by the user's command."""
    import book_site

    tree, status, output = book_site.whole_site(shared_directory)
    assert status == 0, output[-6000:]
    return tree / "_build" / "html"


@pytest.fixture
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``PE_RUNS`` of one test, for tests that train or that count records."""
    path = tmp_path / "runs"
    monkeypatch.setenv("PE_RUNS", str(path))
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the tests of one file that train: ``corpus`` of made-up text, and a cache."""
    from tiny_training import write_corpus

    base = tmp_path_factory.mktemp("training")
    write_corpus(base / "corpus")
    return base


@pytest.fixture
def alone(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training with the cache of `shared`, one thread, and no tracker that the user asked for."""
    import torch

    monkeypatch.setenv("PE_CACHE", str(shared / "cache"))
    monkeypatch.delenv("PE_TRACKERS", raising=False)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Seed torch, so that a test draws the same numbers alone and after other tests."""
    if "torch" in sys.modules:
        from pe._seed import seed_torch

        seed_torch(0)


@pytest.fixture
def tiny_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe demo, smaller still, for tests of the speed run."""
    import dataclasses

    from pe.recipes.named import RECIPES
    from pe.speed import rig

    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 128,
    }  # fmt: skip
    monkeypatch.setitem(RECIPES, "demo", dataclasses.replace(RECIPES["demo"], **sizes))
    monkeypatch.setattr(rig("cell").gc, "collect", lambda: 0)  # slow beside all that pytest holds


@pytest.fixture
def chooser(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the choice of attention by one that answers ``path`` and notes what it was asked."""
    from pe.attention import choose

    answers: dict[str, Any] = {"path": "by hand", "seen": []}

    def path_for(enc: Any, device: Any, dtype: Any, *sizes: int) -> str:
        answers["seen"].append((device.type, dtype, *sizes))
        return str(answers["path"])

    monkeypatch.setattr(choose, "path_for", path_for)
    return answers
