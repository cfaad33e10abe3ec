"""The examples of ``make test`` are the same in every run, whatever ran before in the same process."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[object]:
    examples: list[object] = []

    @given(st.one_of(st.integers(), st.text(), st.binary()))
    def draw(value: object) -> None:
        examples.append(value)

    draw()
    return examples


def test_the_fixed_profile_is_in_force() -> None:
    chosen = settings.default
    assert chosen is not None
    assert chosen.derandomize
    assert chosen.database is None
    assert chosen.deadline is None


def test_examples_do_not_depend_on_the_modules_that_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    path = tmp_path / "oddities.py"
    path.write_text("".join(f"X{n} = ({n}, 'text {n}', b'bytes {n}')\n" for n in range(12_345_000, 12_345_050)))
    spec = importlib.util.spec_from_file_location("oddities", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "oddities", module)
    spec.loader.exec_module(module)
    assert drawn() == before
