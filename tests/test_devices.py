"""The device: chosen in one place, overruled by PE_DEVICE, and what follows from it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pe import devices

CPU, MPS, CUDA = (torch.device(name) for name in ("cpu", "mps", "cuda"))


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What this machine has, as torch would say; CUDA's and MPS' can be changed."""
    has = {"cuda": False, "mps": False}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has["mps"])
    monkeypatch.delenv("PE_DEVICE", raising=False)
    return has


def test_cuda_is_chosen_where_it_is_and_mps_only_if_asked_for(
    there: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert devices.choose() == CPU
    there["mps"] = True
    assert devices.choose() == CPU, "it has no float64, which rotary encodings need"
    there["cuda"] = True
    assert devices.choose() == CUDA
    for name in devices.DEVICES:
        monkeypatch.setenv("PE_DEVICE", name)
        assert devices.choose().type == name


def test_a_device_that_is_unknown_or_not_there_is_refused(
    there: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_DEVICE", "cdua")
    with pytest.raises(ValueError, match=r"PE_DEVICE 'cdua' \(did you mean 'cuda'"):
        devices.choose()
    monkeypatch.setenv("PE_DEVICE", "mps")
    with pytest.raises(ValueError, match="asks for mps, and this machine has cpu"):
        devices.choose()


def test_what_is_automatic_follows_from_the_device() -> None:
    assert [devices.narrow("auto", d) for d in (CUDA, MPS, CPU)] == [True, False, False]
    assert [devices.compiles("auto", d) for d in (CUDA, MPS, CPU)] == [True, False, False]
    for device in (CUDA, MPS, CPU):
        assert devices.narrow("bfloat16", device)
        assert not devices.narrow("float32", device)
        assert devices.compiles("on", device)
        assert not devices.compiles("off", device)


def test_memory_that_nothing_counts_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = devices.peak_memory(CPU)
    assert found is not None
    assert 0.05 < found < 64
    assert devices.peak_memory(MPS) is None
    monkeypatch.setattr(sys, "platform", "win32")
    assert devices.peak_memory(CPU) is None


def test_nothing_else_asks_torch_which_device_there_is() -> None:
    package = Path(devices.__file__).parent
    asking = ("cuda.is_available", "mps.is_available")
    files = [p for p in package.rglob("*.py") if any(a in p.read_text() for a in asking)]
    assert files == [package / "devices.py"]


PAGE_FAULTS = """
import os, resource
import torch
from pe import devices

def page_faults():
    "Pages that three tensors of 36 MiB take from the system, one after the other, after others."
    for _ in range(12):  # the allocator needs some rounds until it finds room in what it kept
        torch.ones(9 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones(9 * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults())
os.environ["MALLOC_TRIM_THRESHOLD_"] = "0"
devices.keep_memory(torch.device("cpu"))
print(page_faults())
del os.environ["MALLOC_TRIM_THRESHOLD_"]
devices.keep_memory(torch.device("cpu"))
print(page_faults())
"""
"""In a process of its own: in this one, earlier tests have left holes that serve any tensor."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these settings are glibc's")
def test_memory_of_a_step_is_kept_for_the_next_one() -> None:
    """In training by every command, not only in the kernels that papermill starts."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PAGE_FAULTS], env=clean, capture_output=True, text=True, check=True
    )
    plain, set_by_user, kept = map(int, done.stdout.split())
    assert set_by_user > plain / 2, "what the user set is left alone"
    assert kept < plain / 10
