"""A program that uses half messages and schedules, and the check of what became of them.

``Purchases`` knows what its database has committed, as a program would, and ``Beats`` when which schedule may fire.
Both compare that with the logs in the end. Neither knows how releases are made.
"""

import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from confluent_kafka import Message

from tests.scenario.held_history import RELEASED, Writer

QUESTIONS = "orders.check"


def _headers(message: Message) -> dict[str, Any]:
    return dict(message.headers() or ())


def by_key(messages: list[Message]) -> dict[str, list[Message]]:
    found = defaultdict(list)
    for message in messages:
        found[message.key().decode()].append(message)
    return found


class Purchases:
    """``arriving`` has the value that must arrive, for each purchase that its database has; None for the others.

    A quarter of them are never decided by the program, as if it had died: the questions about them are answered.
    """

    def __init__(self, writer: Writer, dice: random.Random) -> None:
        self._writer, self._dice = writer, dice
        self.arriving: dict[str, bytes | None] = {}
        self._new_value: dict[str, bytes] = {}
        self._undecided: list[str] = []
        self._decided: set[str] = set()
        self._answered = 0

    def begin(self, count: int) -> None:
        for _ in range(count):
            number = len(self.arriving)
            key, dice = f"purchase {number}", self._dice
            self._writer.write(key, b"%d" % number, check_topic=QUESTIONS, check_after_ms=1000, check_attempts=1000)
            self._new_value[key] = b"%d changed" % number if number % 5 == 0 else b""
            self.arriving[key] = (self._new_value[key] or b"%d" % number) if dice.random() < 0.7 else None
            if dice.random() < 0.75:
                self._undecided.append(key)

    def decide_some(self) -> None:
        """Decides about half of what the program has still to decide, and one in ten twice."""
        self._dice.shuffle(self._undecided)
        half = len(self._undecided) // 2
        for key in self._undecided[half:]:
            for _ in range(2 if self._dice.random() < 0.1 else 1):
                self._decide(key)
        del self._undecided[half:]

    def answer(self, questions: list[Message]) -> None:
        """Answers those that are new. What the program has decided, or will, is decided once more."""
        for question in questions[self._answered :]:
            self._decide(question.key().decode())
        self._answered = len(questions)

    def _decide(self, key: str) -> None:
        self._decided.add(key)
        if self.arriving[key] is None:
            self._writer.write(key, None)
        else:
            self._writer.write(key, self._new_value[key], commit="")

    def are_all_in(self, target: list[Message]) -> bool:
        """Whether everything is decided, and what is committed has arrived."""
        arrived = {message.key().decode() for message in target}
        return len(self._decided) == len(self.arriving) and all(
            key in arrived for key, value in self.arriving.items() if value is not None
        )

    def check(self, held: list[Message], target: list[Message], questions: list[Message]) -> None:
        expected = Counter(value for value in self.arriving.values() if value is not None)
        assert Counter(message.value() for message in target) == expected
        asked = by_key(questions)
        for key, versions in by_key(held).items():
            attempts = [int(_headers(question)["check-attempt"]) for question in asked.get(key, ())]
            assert attempts == list(range(1, len(attempts) + 1)), f"{key} was asked about {attempts}"
            workers = [RELEASED in _headers(message) for message in versions]
            first = next(at for at in range(1, len(versions)) if not workers[at])
            assert sum(workers[:first]) == len(attempts), f"{key} has other versions than questions"
            # Behind the first decision the worker writes nothing but one tombstone, if it was a commit.
            after = [message.value() for message, ours in zip(versions, workers, strict=True) if ours][len(attempts) :]
            assert after == ([] if self.arriving[key] is None else [None]), f"{key} was decided more than once"


class Beats:
    """Schedules that fire each second or two. ``restarts`` has moments at which nothing ran."""

    def __init__(self, writer: Writer, count: int) -> None:
        self._writer = writer
        self._interval_ms: dict[str, int] = {}
        self.restarts: list[int] = []
        for number in range(count):
            schedule, interval_ms = [("@every 1s", 1000), ("* * * * * *", 1000), ("*/2 * * * * *", 2000)][number % 3]
            key = f"beat {number}"
            self._interval_ms[key] = interval_ms
            writer.write(key, key.encode(), schedule=schedule)

    def have_fired(self, target: list[Message], times: int = 1) -> bool:
        fired = by_key(target)
        return all(len(fired.get(key, ())) >= times for key in self._interval_ms)

    def recall(self) -> None:
        for key in self._interval_ms:
            self._writer.write(key, None)

    def check(self, held: list[Message], target: list[Message]) -> int:
        """Returns how many firings were made up for, each for all that were missed while nothing ran."""
        versions, made_up = by_key(held), 0
        for key, fired in by_key(target).items():
            interval_ms = self._interval_ms[key]
            times = [(int(_headers(message)["due-at"]), message.timestamp()[1]) for message in fired]
            assert all(due <= released for due, released in times), f"{key} has fired early"
            for (due, released), (next_due, _) in pairwise(times):
                assert next_due > due, f"{key} has fired twice for {next_due}"
                assert (next_due - due) % interval_ms == 0, f"{key} is out of step at {next_due}"
                # Left out is only what was due when the one before was released.
                assert next_due - interval_ms <= max(due, released), f"{key} has left out firings before {next_due}"
            for restart in self.restarts:
                late = sum(due <= restart < released for due, released in times)
                assert late <= 1, f"{key} has made up for {late} firings that were missed at {restart}"
                made_up += late
            *workers, last = versions[key][1:]
            assert last.value() is None
            assert RELEASED not in _headers(last), f"{key} was released behind its recall"
            assert len(workers) == len(times), f"{key} has other versions than firings"
        return made_up
