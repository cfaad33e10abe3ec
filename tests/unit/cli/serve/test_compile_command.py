"""``skep compile``: once there is something to do, and then nothing; without numba it says what to install."""

import pytest

from skep.base.extras import how_to_install
from skep.cli.failures import CommandError
from skep.cli.main import call


def test_what_is_compiled_is_not_compiled_again(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            call(["compile"])
        assert not ended.value.code
    assert capsys.readouterr().out.splitlines()[-1] == "already compiled"


def test_without_numba_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandError) as refused:
        call(["compile"])
    assert str(refused.value) == f"numba, the compiler, is not installed: {how_to_install('fast')}"


def test_a_library_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep.replication.upkeep.kernel_compilation.missing", lambda: ["skep.no_such_kernels"])
    with pytest.raises(CommandError, match=r"^cannot compile: No module named 'skep\.no_such_kernels'$"):
        call(["compile"])
