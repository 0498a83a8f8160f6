"""Compiles modules with mypyc for a wheel that is asked for with TIDEGATE_COMPILE=1. Does nothing for any other.

The modules are listed in pyproject.toml, under tool.tidegate.compiled. Called by hatchling, which installs mypy and
setuptools for it only then. The wheel has all sources too: the extensions lie beside them, and are imported instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
NEEDED = ["mypy>=2.4,<3", "setuptools>=70"]
"""mypy brings mypyc; setuptools knows how this Python's extensions are built."""
LIBRARY = "tidegate.compiled"
"""The extension that holds the code of all modules, each of which is a small extension that refers to it."""


def wanted() -> bool:
    """Whether a compiled wheel was asked for."""
    return os.environ.get("TIDEGATE_COMPILE", "").lower() not in {"", "0", "no", "false"}


class CompiledModules(BuildHookInterface[Any]):
    """The build hook of the wheel."""

    _folder: Path | None = None

    def dependencies(self) -> list[str]:
        """What has to be installed to build: types are read from what Tidegate imports, too."""
        return [*NEEDED, *self.metadata.core.dependencies] if wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and puts the extensions into the wheel. An editable installation is never compiled."""
        if not wanted() or version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-compile-"))
        # In a process of its own: mypy works from the folder of the sources, and ends its process over an error.
        done = subprocess.run([sys.executable, __file__, str(self._folder)], cwd=ROOT / "src", check=False)
        if done.returncode:
            self._clean_up()
            raise SystemExit("tidegate: compiling failed, see above. Without TIDEGATE_COMPILE nothing is compiled.")
        made = self._folder / "made"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {
            str(file): file.relative_to(made).as_posix() for file in sorted(made.rglob("*")) if file.is_file()
        }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what the wheel has by now."""
        self._clean_up()

    def _clean_up(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def listed() -> list[str]:
    """Files of the modules to compile, seen from `src`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return [f"{name.replace('.', '/')}.py" for name in project["tool"]["tidegate"]["compiled"]["modules"]]


def compile_into(folder: Path) -> None:
    """Leaves the extensions in `folder`/made, laid out as in the package. Ends the process where that can't be."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):
        def build_extensions(self) -> None:
            self.compiler.compile = partial(_compile_at_once, self.compiler)
            super().build_extensions()

    code = folder / "code"
    extensions = mypycify(
        [
            f"--config-file={ROOT / 'pyproject.toml'}",
            f"--cache-dir={folder / 'types'}",
            "--follow-imports=silent",
            *listed(),
        ],
        group_name=LIBRARY,
        target_dir=str(code),
        opt_level="2",
        debug_level="0",
        multi_file=True,
    )
    for extension in extensions:
        extension.include_dirs.append(str(code / LIBRARY.rpartition(".")[0]))
        if os.name != "nt":
            # Nobody links to the library, and what an unknown compiler warns of is no reason to have none.
            extension.extra_compile_args += ["-Wno-error", "-fvisibility=hidden"]
    command = Build(Distribution({"name": "tidegate", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "made"), str(folder / "objects")
    command.ensure_finalized()
    command.run()


def _compile_at_once(
    compiler: Any,
    sources: Sequence[str],
    output_dir: str | None = None,
    macros: Any = None,
    include_dirs: Any = None,
    debug: bool = False,
    extra_preargs: Any = None,
    extra_postargs: Any = None,
    depends: Any = None,
) -> list[str]:
    """distutils' `CCompiler.compile` with as many files at a time as there are cores."""
    _, objects, postargs, options, build = compiler._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs
    )
    arguments = compiler._get_cc_args(options, debug, extra_preargs)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        each = [
            pool.submit(compiler._compile, made, *build[made], arguments, postargs, options)
            for made in objects
            if made in build
        ]
    for one in each:
        one.result()
    return list(objects)


def main() -> None:
    """The process in which is compiled: the argument is an empty folder."""
    from setuptools.errors import CompileError, PlatformError

    try:
        compile_into(Path(sys.argv[1]))
    except (CompileError, PlatformError) as error:
        raise SystemExit(f"tidegate: a C compiler and Python's headers are needed to compile: {error}") from None


if __name__ == "__main__":
    main()
