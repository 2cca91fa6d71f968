"""What is declared in one file agrees with what is declared in the others, and with the code."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ("3.11", "3.12")
# torch pins these exactly itself, and only its CUDA builds need them.
CUDA = re.compile(r"^(nvidia-|cuda-)")


def declared(*extras: str) -> list[Requirement]:
    """Requirements of pyproject.toml: the runtime's and those of the extras."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


LINUX = {"sys_platform": "linux", "platform_system": "Linux"}


def locked(python: str, system: dict[str, str] = LINUX) -> dict[str, str]:
    """Name -> version as the lock pins it for one Python on Linux, or on another system."""
    pins: dict[str, str] = {}
    for line in (ROOT / "requirements-lock.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        where = {"python_version": python} | system
        if requirement.marker and not requirement.marker.evaluate(where):
            continue
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        assert "+" not in specifier.version, f"a local build is no release: {line}"
        assert requirement.name not in pins, f"{requirement.name} is pinned twice for {python}"
        pins[requirement.name] = specifier.version
    return pins


def test_conda_environment_has_the_bounds_of_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (conda_python,) = [d for d in environment if str(d).startswith("python")]
    (pip_lines,) = [d["pip"] for d in environment if isinstance(d, dict)]
    assert (
        Requirement(conda_python).specifier
        == Requirement(f"python{PROJECT['requires-python']}").specifier
    )
    assert pip_lines.count("-e .") == 1
    in_conda = {r.name: r.specifier for r in map(Requirement, set(pip_lines) - {"-e ."})}
    assert in_conda == {r.name: r.specifier for r in declared("test")}


def test_every_requirement_has_both_bounds() -> None:
    for requirement in declared(*PROJECT["optional-dependencies"]):
        operators = {s.operator for s in requirement.specifier}
        assert operators == {">=", "<"}, requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_satisfies_every_bound(python: str) -> None:
    pins = locked(python)
    for requirement in declared("test"):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in the lock"
        assert requirement.specifier.contains(version), f"{requirement} is locked to {version}"


def test_the_lock_installs_on_the_first_release_of_this_python() -> None:
    """Debian 12 has CPython 3.11.2: a package that wants 3.11.5 stopped `make test` there."""
    first = f"{sys.version_info.major}.{sys.version_info.minor}.0"
    for name in locked(first.removesuffix(".0")):
        needs = importlib.metadata.metadata(name).get("Requires-Python", "")
        assert SpecifierSet(needs).contains(first), f"{name} needs Python {needs}"


def test_the_lock_is_complete_for_this_python() -> None:
    """Everything that the installed packages say they need is pinned, to the bottom."""
    pins = locked(f"{sys.version_info.major}.{sys.version_info.minor}")
    waiting = [(canonicalize_name(r.name), frozenset(r.extras)) for r in declared("test")]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        assert name in pins, f"{name} is needed and not in the lock"
        for line in importlib.metadata.requires(name) or []:
            need = Requirement(line)
            if need.marker and not any(
                need.marker.evaluate({"extra": extra}) for extra in extras | {""}
            ):
                continue
            item = (canonicalize_name(need.name), frozenset(need.extras))
            if item not in seen and not CUDA.match(item[0]):
                seen.add(item)
                waiting.append(item)


def imported(folder: str) -> Iterator[tuple[str, Path]]:
    """Top-level names that a folder's files import, each with a file that does."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], path) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0], path


# Imported only where it is installed, behind a check, and declared nowhere on purpose.
OPTIONAL = {"gguf", "lm_eval", "wandb", "tensorboard", "pytest", "x_transformers"}
# Used together with the package that brings it, and bound by that package's bounds.
CARRIED = {
    "sphinx": "jupyter-book",
    "docutils": "jupyter-book",
    "pybtex": "jupyter-book",
    "myst_nb": "jupyter-book",
    "pyarrow": "datasets",
    "IPython": "ipykernel",
    "jupyter_client": "nbclient",
    "nbconvert": "jupyterlab",
    "jupyter_core": "nbclient",
    "traitlets": "nbclient",
    "packaging": "pytest",
    "psutil": "accelerate",
    "huggingface_hub": "transformers",
    "tqdm": "papermill",
    "click": "papermill",
    "setuptools": "torch",
    "triton": "torch",  # of its CUDA builds, and only with those are the kernels imported
}


FOLDERS = ("pe", "tests", "tools", "benchmarks", "book/_ext")


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_imported_is_declared(folder: str) -> None:
    extras = () if folder == "pe" else ("test",)
    names = {canonicalize_name(r.name) for r in declared(*extras)}
    distributions = importlib.metadata.packages_distributions()
    files = [p for where in FOLDERS for p in (ROOT / where).rglob("*.py")]
    own = {"pe", *(p.stem for p in files), *(p.parent.name for p in files), *FOLDERS}
    missing = set()
    for module, path in imported(folder):
        if module in sys.stdlib_module_names or module in own or module in OPTIONAL:
            continue
        homes = {canonicalize_name(d) for d in distributions.get(module, [module])}
        homes.add(CARRIED.get(module, module))
        if not homes & names:
            missing.add(f"{path.relative_to(ROOT)} imports {module}")
    assert not missing


def test_the_books_extensions_are_locked() -> None:
    sphinx = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]
    pins = locked(PYTHONS[0])
    for extension in sphinx.get("extra_extensions", []):
        if extension.startswith("sphinx.ext."):
            continue
        # sphinxcontrib is shared by many distributions, so the whole name has to match.
        homes = importlib.metadata.packages_distributions().get(extension.split(".")[0], [])
        names = {canonicalize_name(home) for home in homes} | {canonicalize_name(extension)}
        assert names & set(pins), f"{extension} is in no locked package"


def test_versions_agree() -> None:
    import pe

    version = PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(
        r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert newest is not None
    assert (pe.__version__, citation["version"], newest[1]) == (version, version, version)
    assert str(citation["date-released"]) == newest[2]
    assert citation["license"] == PROJECT["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")


def test_workflows_test_every_supported_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert tuple(workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]) == PYTHONS


def test_a_mac_is_given_no_package_that_is_only_for_linux() -> None:
    for python in PYTHONS:
        mac = locked(python, {"sys_platform": "darwin", "platform_system": "Darwin"})
        assert locked(python).keys() - mac.keys() == {"triton"}
        assert mac.keys() - locked(python).keys() == {"appnope"}
    assert {f"Programming Language :: Python :: {p}" for p in PYTHONS} <= set(
        PROJECT["classifiers"]
    )


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("runs/local/pope-s0-1a2b3c4d/run.json", True),
        ("runs/demo/pope-s0-1a2b3c4d/checkpoint/model.safetensors", True),
        ("runs/demo/pope-s0-1a2b3c4d/checkpoints/step-100/optimizer.pt", True),
        ("runs/demo/pope-s0-1a2b3c4d/best/model.safetensors", True),
        ("runs/demo/pope-s0-1a2b3c4d/.lock", True),
        ("book/notebooks/train.ipynb", True),
        ("book/runs/demo/pope-s0-1a2b3c4d/train.ipynb", True),
        ("book/_generated/table.md", True),
        ("_build/html/index.html", True),
        ("book/_build/html/index.html", True),
        (".venv/bin/python", True),
        ("pe/__pycache__/runs.cpython-311.pyc", True),
        (".pytest_cache/README.md", True),
        (".mypy_cache/3.11/pe.json", True),
        (".ruff_cache/x", True),
        ("notebooks/.ipynb_checkpoints/train.ipynb", True),
        ("pe_encodings.egg-info/PKG-INFO", True),
        ("runs/demo/pope-s0-1a2b3c4d/run.json", False),
        ("runs/demo/pope-s0-1a2b3c4d/train.ipynb", False),
        ("runs/every/reach.svg", False),
        ("pe/training/checkpoint.py", False),
        ("book/methods/pope.md", False),
        ("notebooks/train.ipynb", False),
    ],
)
def test_gitignore(path: str, ignored: bool) -> None:
    command = ["git", "check-ignore", "-q", "--no-index", path]
    assert (subprocess.run(command, cwd=ROOT).returncode == 0) is ignored


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, beside the folder ``source`` that it was built from."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("notebooks", "studies"):
        shutil.copytree(ROOT / name, source / name)
    shutil.copytree(ROOT / "pe", source / "pe", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").touch()
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(base), str(source)], check=True)
    (built,) = base.glob("pe_encodings-*.whl")
    return built


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    source = wheel.parent / "source"
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    wanted = {
        str(path.relative_to(source))
        for pattern in ("*.py", "*.txt", "py.typed")
        for path in (source / "pe").rglob(pattern)
    }
    wanted |= {
        f"pe/shipped/{path.relative_to(source)}"
        for path in (*source.glob("notebooks/*.ipynb"), *source.glob("studies/**/*.yaml"))
    }
    assert packed == wanted


def test_the_installed_package_knows_its_studies_in_an_empty_folder(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import pe, pe.tasks.study; pe.tasks.study.load_study('core'); "
        "print(pe.__file__, len(pe.load_plan('scaffold')))"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "empty", env=environment, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path / "site/pe/__init__.py"), "10"], done.stderr


def test_the_installed_package_checks_an_encoding_of_anybodys(wheel: Path, tmp_path: Path) -> None:
    """`pe check` and `pytest --pe` from a folder that knows nothing of this repository."""
    site = wheel.parent / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    command += ["--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    shutil.copy(ROOT / "tests" / "helpers" / "broken_encodings.py", tmp_path / "mine.py")
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    checked = run(str(site / "bin" / "pe"), "check", "mine:Shift", "-l", "shift", "-l", "heads")
    assert checked.returncode == 1, checked.stdout
    assert "1 ok, 1 FAILED, 0 not applicable" in checked.stdout
    tested = run(sys.executable, "-m", "pytest", "--pe", "mine:Slope", "-k", "shift or heads")
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout


def test_papermill_finds_the_engine_that_the_entry_point_names() -> None:
    from papermill.engines import papermill_engines

    (point,) = importlib.metadata.entry_points(group="papermill.engine", name="pe")
    assert point.value == PROJECT["entry-points"]["papermill.engine"]["pe"]
    assert papermill_engines.get_engine("pe") is point.load()
