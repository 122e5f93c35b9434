"""Pause Python's garbage collector while many objects are made that will be kept: in a tick, and during imports."""

import gc
from typing import Final

MANY: Final = 100_000
"""The number of new objects above which a collection of garbage would take a considerable time."""


class PausedGC:
    """A `with` block during which Python's garbage collector does not run. If it was enabled before, it is enabled
    afterwards.

    A tick makes hundreds of thousands of objects and needs most of them until its end. Collections during the tick free
    nothing and take a tenth of the time of a plan, more in a large fleet. Imports also make some hundred thousand
    objects that stay. There, collections take a fifth of the time for importing Celery and SQLAlchemy, and a third for
    moto.
    """

    # A class, not a generator: __exit__ allocates nothing, so no collection starts inside it.
    _was_enabled = False

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        """Enable Python's garbage collector again, if it was enabled before the block."""
        if self._was_enabled:
            gc.enable()


def put_many_away() -> None:
    """Move all objects to the permanent generation of Python's garbage collector, if many were made while the collector
    was paused.

    Otherwise the next allocation after the pause starts a collection, which looks at all new objects. Objects in the
    permanent generation are freed by their reference counts as before, but cycles of references among them are never
    freed. So call this function rarely.
    """
    if gc.get_count()[0] >= MANY:
        gc.freeze()
