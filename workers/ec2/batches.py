"""Calls of EC2 about many instances: in batches of ids, and page by page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import Final, TypeVar

from scheduler.ports import CloudError
from workers.ec2.errors import cloud_errors

MOST_IDS: Final = 100
"""The most instances in one call that describes them by id."""

Answer = TypeVar("Answer")
Page = TypeVar("Page")


def each_batch(ids: Sequence[str], call: Callable[[list[str]], list[Answer]], size: int = MOST_IDS) -> Iterator[Answer]:
    """Call `call` with batches of `size` ids, and yield its answers.

    If EC2 does not know an id, it refuses the whole batch. Then each half of the batch is sent by itself, and so on,
    until the unknown id is alone in its batch. No answer is yielded for an unknown id. Raises CloudError for any other
    refusal.
    """
    unread = iter(dict.fromkeys(ids))
    while batch := list(islice(unread, size)):
        try:
            with cloud_errors():
                answers = call(batch)
            yield from answers
        except CloudError as error:
            if error.category != "not_found":
                raise
            if len(batch) > 1:
                yield from each_batch(batch, call, size=ceil(len(batch) / 2))


def read_pages(pages: Iterable[Page]) -> Iterator[Page]:
    """Yield the pages of a list that EC2 returns in several pages. Raises CloudError if a call for a page fails."""
    unread = iter(pages)
    while True:
        with cloud_errors():
            page = next(unread, None)
        if page is None:
            return
        yield page
