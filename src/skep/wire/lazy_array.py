"""An array of a response whose elements are made when they are encoded.

A refused request for 200,000 items has a response with 200,000 elements. Making them takes 0.1 s. The encoder works in
slices (``codec.encode_in_slices``), so each slice makes its own elements.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

T = TypeVar("T")


class LazyArray(Sequence[Any]):
    """Has ``make(one)`` for each of ``of``, which must not change. An element is made each time it is accessed."""

    __slots__ = ("_make", "_of")

    def __init__(self, of: Sequence[T], make: Callable[[T], Any]) -> None:
        self._of: Sequence[Any] = of
        self._make = make

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._of)

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return [self._make(one) for one in self._of[place]]
        return self._make(self._of[place])
