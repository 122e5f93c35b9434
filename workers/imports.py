"""Imports without garbage collection: a stack starts a dozen processes, and imports take most of their start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pause the garbage collector within this context.

    Imports create some hundred thousand objects, and nearly all of them stay. Checking them repeatedly takes a fifth of
    the time that Celery and SQLAlchemy need for their import, and a third of moto's.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
