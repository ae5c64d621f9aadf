"""Puts units together to pieces: as much as fits, ending at the best joint."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from appliance_retrieval.chunkers.units import DEEPEST, INSIDE, TABLE, Unit


class Counter:
    """Counts tokens: those that begin between two character offsets."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._starts = [start for start, _ in spans]

    def __call__(self, start: int, end: int) -> int:
        """How many tokens begin there."""
        return bisect_left(self._starts, end) - bisect_left(self._starts, start)

    def fitting(self, text: str, found: Iterable[Unit], size: int) -> Iterator[tuple[Unit, int]]:
        """Units with their tokens; those of more than ``size`` are cut between words, and long words inside."""
        for unit in found:
            rest = unit
            while (tokens := self(rest.start, rest.end)) > size:
                cut = self._cut(text, rest, size)
                yield rest._replace(end=cut), self(rest.start, cut)
                rest = rest._replace(start=cut, rank=INSIDE)
            yield rest, tokens

    def _cut(self, text: str, unit: Unit, size: int) -> int:
        """The end of the last word that fits, if there is one in the second half; else where the tokens end."""
        first = bisect_left(self._starts, unit.start)
        most = self._starts[first + size]
        if most == unit.start:  # one character of very many tokens
            return unit.start + 1
        half = self._starts[first + size // 2]
        return max(text.rfind(mark, half, most) for mark in " \n\t") + 1 or most


def within(counter: Counter, size: int) -> Callable[[int, int], bool]:
    """Says whether a place holds at most ``size`` tokens."""
    return lambda start, end: counter(start, end) <= size


class Packer:
    """Pieces of at most ``size`` tokens, each as the units that it holds.

    Neighbours share at most ``overlap`` tokens. A piece may end early, at a better joint, with ``least`` tokens in it.
    """

    def __init__(self, found: Iterable[tuple[Unit, int]], *, size: int, overlap: int, least: float) -> None:
        pairs = list(found)
        self._units, self._tokens = [unit for unit, _ in pairs], [tokens for _, tokens in pairs]
        self._size, self._overlap, self._least = size, overlap, least

    def __iter__(self) -> Iterator[Sequence[Unit]]:
        start = end = 0
        while end < len(self._units):
            end = self._end(start, end)
            yield self._units[start:end]
            start = self._next(start, end)

    def _end(self, start: int, covered: int) -> int:
        """Number of the unit that the piece ends before: the last of the best, beyond what is covered already."""
        filled, best, best_rank = 0, covered + 1, -1
        for number in range(start, len(self._units)):
            rank = self._units[number].rank
            if number > covered and (filled >= self._least or best_rank < 0) and rank >= best_rank:
                # What comes before the least is taken only where nothing comes after it.
                best, best_rank = number, rank if filled >= self._least else -1
            filled += self._tokens[number]
            if filled > self._size:
                return best
        return len(self._units)

    def _next(self, start: int, end: int) -> int:
        """Where the next piece begins: before ``end`` by what is shared, if the unit at ``end`` fits behind it."""
        if end == len(self._units) or _is_apart(self._units[end]):
            return end
        room = min(self._overlap, self._size - self._tokens[end])
        number = end
        while number - 1 > start and self._tokens[number - 1] <= room:
            number -= 1
            room -= self._tokens[number]
            if _is_apart(self._units[number]):
                break
        return number


def _is_apart(unit: Unit) -> bool:
    """Whether it begins a section or a table: then nothing of what was before it comes with it."""
    return unit.rank >= DEEPEST or unit.rank == TABLE
