"""The Makefile and its helpers, run with stand-ins for Python, papermill and jupyter-book."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Answers like a Python 3.11 that can make environments, and writes down what it was asked to do.
FAKE_PYTHON = """\
#!/bin/sh
case "$1 $2" in
    "tools/unrecorded.py "*) shift; echo $* | sed "s/${DONE:-none}//" ;;
    "-c "*) case "$2" in *ensurepip*) echo "$0" ;; *) echo "The guide: file:///x" ;; esac ;;
    "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python; echo venv >>log ;;
    "-m pip") [ "$3" = --version ] || { echo "pip $3" >>log; exit ${PIP_STATUS:-0}; } ;;
esac
"""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The build files in a folder whose name has a space, and a stand-in for Python."""
    folder = tmp_path / "a checkout"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "requirements-lock.txt", "pyproject.toml", "tools/find-python"):
        shutil.copy(ROOT / name, folder / name)
    script(folder / "python", FAKE_PYTHON)
    return folder


def make(checkout: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "PYTHON=./python", *arguments],
        cwd=checkout,
        env=clean | env,
        capture_output=True,
        text=True,
        check=False,
    )


def log(checkout: Path) -> list[str]:
    path = checkout / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_help_documents_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in phony[1].split():
        assert re.search(rf"^  make {target} +\S", shown.stdout, re.MULTILINE), target


def test_the_environment_is_installed_once(checkout: Path) -> None:
    assert make(checkout, "env").returncode == 0
    assert log(checkout) == ["venv", "pip install", "pip install"]
    assert make(checkout, "env").returncode == 0
    assert log(checkout) == []
    later = (checkout / ".venv/.installed").stat().st_mtime + 10
    os.utime(checkout / "pyproject.toml", (later, later))
    assert make(checkout, "env").returncode == 0
    assert log(checkout) == ["pip install"], "a new pyproject.toml reinstalls pe and nothing else"


def test_a_failed_install_is_reported_and_taken_up_again(checkout: Path) -> None:
    assert make(checkout, "env", PIP_STATUS="1").returncode != 0
    assert log(checkout) == ["venv", "pip install"]
    assert make(checkout, "env").returncode == 0
    assert log(checkout) == ["pip install", "pip install"], "the environment itself is kept"


def test_demo_runs_the_documented_commands_and_stops_at_a_failure(checkout: Path) -> None:
    make(checkout, "env")
    log(checkout)
    for name in ("papermill", "jupyter-book"):
        tell = f'#!/bin/sh\necho "{name} $*" >>log\n'
        script(checkout / ".venv/bin" / name, tell + 'case "$*" in *"pe $FAIL "*) exit 1; esac\n')
    done = make(checkout, "demo")
    assert done.returncode == 0, done.stderr
    train = "papermill notebooks/train.ipynb -p pe {} -p recipe demo"
    trainings = [train.format(pe) for pe in ("nope", "rope", "yarn", "pope")]
    assert log(checkout) == [*trainings, "jupyter-book build book"]
    assert done.stdout.rstrip().endswith("The guide: file:///x")

    again = make(checkout, "demo", DONE="rope yarn")
    assert again.returncode == 0
    assert log(checkout) == [trainings[0], trainings[3], "jupyter-book build book"]

    failed = make(checkout, "demo", FAIL="rope")
    assert failed.returncode != 0
    assert log(checkout) == trainings[:2]


@pytest.mark.parametrize("failing", ["", "ruff", "mypy", "pytest"])
def test_tests_pass_only_where_style_types_and_tests_do(checkout: Path, failing: str) -> None:
    make(checkout, "env")
    log(checkout)
    for name in ("ruff", "mypy", "pytest"):
        fault = f"echo fault of {name}; exit 3" if name == failing else "exit 0"
        script(checkout / ".venv/bin" / name, f"#!/bin/sh\necho {name} >>log\n{fault}\n")
    done = make(checkout, "test")
    assert (done.returncode == 0) == (not failing), done.stdout + done.stderr
    assert not failing or f"fault of {failing}" in done.stdout
    assert ("pytest" in log(checkout)) == (failing != "ruff"), "a fault of style is told at once"


def find_python(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools/find-python"), *arguments],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_python_that_exists_and_does_not_run_is_passed_over(tmp_path: Path) -> None:
    script(tmp_path / "shims/python3.11", "#!/bin/sh\necho 'not found' >&2\nexit 127\n")
    script(tmp_path / "old/python3.11", "#!/bin/sh\necho /old\nexit 1\n")
    script(tmp_path / "real/python3.12", "#!/bin/sh\necho /real/python3.12\n")
    path = ":".join(str(tmp_path / name) for name in ("shims", "old", "real"))
    found = find_python(path=path)
    assert (found.returncode, found.stdout) == (0, "/real/python3.12\n")


def test_no_usable_python_is_one_clear_message(tmp_path: Path) -> None:
    script(tmp_path / "python3", "#!/bin/sh\n[ $1 = --version ] && echo Python 3.9.2\nexit 1\n")
    nothing = find_python(path=str(tmp_path))
    assert nothing.returncode == 1
    assert "3.11 or 3.12" in nothing.stderr
    assert "make PYTHON=" in nothing.stderr
    assert nothing.stdout == ""
    named = find_python(str(tmp_path / "python3"), path="/usr/bin:/bin")
    assert named.returncode == 1
    assert "Python 3.9.2" in named.stderr
