"""The wheel also holds the notebooks and studies, which a checkout has beside the package."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("notebooks/*.ipynb", "studies/*.yaml", "studies/*/*.yaml")


class BuildWithNotebooks(build_py):
    """Copies them to pe/shipped; an editable install reads them where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        root = Path(__file__).resolve().parent
        for path in (path for pattern in SHIPPED for path in sorted(root.glob(pattern))):
            target = Path(self.build_lib, "pe", "shipped", path.parent.relative_to(root))
            self.mkpath(str(target))
            self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": BuildWithNotebooks})
