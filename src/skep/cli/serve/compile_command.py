"""``skep compile``: compile the kernels, where no broker has done it: in an image, or on a machine that only reads."""

import time

import typer

from skep.base.extras import how_to_install
from skep.cli import output
from skep.cli.failures import CommandError


def register(app: typer.Typer) -> None:
    app.command("compile")(compile_)


def compile_() -> None:
    """Compile the loops over records before their first use.

    Compaction, skep.read_arrow and Spark's workers use loops that numba compiles for this machine's processor. They are
    compiled once after an installation, which takes some ten seconds, and loaded from a cache afterwards. skep serve
    does it in the background. Run this command where no broker runs, for example when an image for Spark's executors is
    built, or the first read waits for it.

    \b
    Examples:
      skep compile
    """
    from skep.replication.upkeep.kernel_compilation import compile_now, is_compiler_installed, missing

    if not is_compiler_installed():
        raise CommandError(f"numba, the compiler, is not installed: {how_to_install('fast')}")
    begun = time.monotonic()
    if modules := missing():
        try:
            compile_now(modules)
        except ImportError as error:
            raise CommandError(f"cannot compile: {error}") from None
        output.line(f"compiled in {time.monotonic() - begun:.1f} s")
    else:
        output.line("already compiled")
