"""Calls of EC2 about many instances: in batches of ids, and page by page.

EC2 refuses a whole call because of a single machine: an unknown id, a protected machine, a machine in a wrong state. So
a refused batch is divided until such a machine is alone.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from scheduler.ports import CloudError
from workers.ec2.errors import cloud_errors

MOST_IDS: Final = 100
"""The most instances in one call that describes them by id."""
MOST_REFUSALS: Final = 20
"""After this number of refused calls in a row, the rest of a batch counts as refused for the same reason."""
MOST_RESTS: Final = 2
"""How often in a row a refused batch is sent again without the machines that EC2 named, before it is halved."""
_SHARED: Final = frozenset({"capacity", "quota"})
"""Categories of refusals that hold for the rest of a batch as soon as EC2 refuses a single machine."""
_WORD: Final = re.compile(r"[\w-]+")

Answer = TypeVar("Answer")
Page = TypeVar("Page")


def each_batch(ids: Iterable[str], call: Callable[[list[str]], list[Answer]], size: int = MOST_IDS) -> Iterator[Answer]:
    """Call `call` with batches of `size` ids, and yield its answers. No answer is yielded for an id that EC2 does not
    know. Raises CloudError for any other refusal.
    """
    for batch in cut_ids(ids, size):
        waiting = [_Part(batch)]
        while waiting:
            part = waiting.pop()
            try:
                with cloud_errors():
                    answers = call(part.ids)
            except CloudError as error:
                if error.category != "not_found":
                    raise
                waiting += _divide(part, error)[1]
            else:
                yield from answers


def change_batches(ids: Iterable[str], call: Callable[[list[str]], object], size: int) -> dict[str, CloudError]:
    """Change machines: call `call` with batches of `size` ids. Return id -> error for each machine that EC2 did not
    accept. `scheduler.ports.Fleet.terminate` describes the result and the errors.
    """
    change = _Change(call)
    batches = list(cut_ids(ids, size))
    for number, batch in enumerate(batches):
        error = change.send(batch)
        if error is not None:
            change.give_up((each for later in batches[number + 1 :] for each in later), error)
            break
    return change.refused


class _Part(NamedTuple):
    """A part of a batch. `named`: from how many refused calls in a row it is the rest, without the machines that EC2
    named.
    """

    ids: list[str]
    named: int = 0


class _Change:
    """One change of many machines. `refused`: id -> error for each machine that EC2 did not accept."""

    def __init__(self, call: Callable[[list[str]], object]) -> None:
        self._call = call
        self._is_known = False
        """Whether EC2 has accepted or refused any machine."""
        self.refused: dict[str, CloudError] = {}

    def send(self, batch: list[str]) -> CloudError | None:
        """Change the machines of one batch. Return the error that concerns every call, if there is one. It is raised if
        nothing is known of any machine yet.
        """
        waiting, in_a_row = [_Part(batch)], 0
        while waiting:
            part = waiting.pop()
            try:
                with cloud_errors():
                    self._call(part.ids)
            except CloudError as error:
                in_a_row += 1
                if not error.may_concern_one:
                    if not self._is_known:
                        raise
                    self.give_up((each for left in (part, *waiting) for each in left.ids), error)
                    return error
                named, parts = _divide(part, error)
                waiting += parts
                if error.category != "not_found":
                    self.give_up(named, error)
                if in_a_row >= MOST_REFUSALS or (error.category in _SHARED and len(part.ids) == 1):
                    self.give_up((each for left in waiting for each in left.ids), error)
                    return None
            else:
                in_a_row = 0
            self._is_known = True
        return None

    def give_up(self, machines: Iterable[str], error: CloudError) -> None:
        self.refused.update(dict.fromkeys(machines, error))


def _divide(part: _Part, error: CloudError) -> tuple[list[str], list[_Part]]:
    """Return the machines of a refused part that are refused for certain, and the parts in which the others are sent.

    The machines that EC2 names in its message are taken out, and the rest is sent again. If EC2 names none of them, or
    refuses the rests again and again, the halves are sent. The halves are drawn at random: a change of many machines
    may end after MOST_REFUSALS, and its repetition then comes to other machines first.
    """
    mentioned = set(_WORD.findall(error.message)) if len(part.ids) > 1 else set(part.ids)
    named = [each for each in part.ids if each in mentioned]
    rest = [each for each in part.ids if each not in mentioned]
    if (named and part.named < MOST_RESTS) or len(rest) <= 1:
        return named, [_Part(rest, part.named + 1)] if rest else []
    drawn = random.sample(rest, len(rest))
    middle = (len(rest) + 1) // 2
    return named, [_Part(drawn[middle:]), _Part(drawn[:middle])]


def cut_ids(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield these ids in lists of at most `size`, each id once."""
    unread = iter(dict.fromkeys(ids))
    while batch := list(islice(unread, size)):
        yield batch


def read_pages(pages: Iterable[Page]) -> Iterator[Page]:
    """Yield the pages of a list that EC2 returns in several pages. Raises CloudError if a call for a page fails."""
    unread = iter(pages)
    while True:
        with cloud_errors():
            page = next(unread, None)
        if page is None:
            return
        yield page
