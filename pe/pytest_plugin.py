"""pytest plug-in: ``pytest --pe my_module:MyEncoding`` runs each law of `pe.conformance` as a test.

Unless the command line also names test files, only the laws are run. Torch is imported only when
``--pe`` is given, because pytest loads its plug-ins before every run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pe.conformance import Finding, Law, Subject


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--pe`` and ``--pe-option`` to pytest's command line."""
    group = parser.getgroup("pe", "laws of positional encodings")
    group.addoption("--pe", action="append", default=[], metavar="ENCODING",
                    help="run the laws that this encoding's traits promise: a name, names joined "
                         "by +, or module:Class; repeatable")  # fmt: skip
    group.addoption("--pe-option", action="append", default=[], metavar="KEY=VALUE",
                    help="an option of the encodings under --pe; repeatable")  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--pe``, skip test files that the command line does not name."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return True if config.getoption("pe") and not named else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each law and encoding."""
    for spec in config.getoption("pe"):
        laws = Laws.from_parent(session, name=spec, nodeid=spec)
        items.extend(laws.collect())


class Laws(pytest.Collector):
    """All laws of one encoding."""

    def collect(self) -> Iterator[pytest.Item]:
        sys.path.insert(0, os.getcwd())  # the folder in which `my_module` is
        from pe.cli import option_values
        from pe.conformance import LAWS, Subject

        try:
            options = option_values(self.config.getoption("pe_option"))
            subject = Subject(self.name, options)
        except Exception as error:  # importing the user's module can raise anything
            raise pytest.UsageError(f"--pe {self.name}: {error}") from error
        for law in LAWS.values():
            yield LawItem.from_parent(self, name=law.name, law=law, subject=subject)


class LawItem(pytest.Item):
    """One law of one encoding."""

    def __init__(self, *, law: Law, subject: Subject, **more: Any) -> None:
        super().__init__(**more)
        self.law, self.subject = law, subject

    def runtest(self) -> None:
        from pe.conformance import hold

        require(hold(self.law, self.subject))

    def repr_failure(self, excinfo: Any, style: Any = None) -> str:
        return f"{self.parent and self.parent.name}: {self.law.sentence}\n{excinfo.value}"

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent and self.parent.name}: {self.law.name}"


def require(finding: Finding) -> None:
    """Let the running test pass, skip with the reason, or fail with the reason."""
    if finding.result == "not applicable":
        pytest.skip(f"not applicable: {finding.reason}")
    if finding.result == "FAILED":
        raise AssertionError(finding.reason)
