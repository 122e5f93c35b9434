"""Imports without the garbage collector: a stack starts a dozen processes, and most of a start is imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Within it no garbage is collected. Modules are made of objects by the hundred thousand, nearly all of them there
    to stay; looking at them again and again is a fifth of the time that Celery and SQLAlchemy take to import, and a
    third of moto's.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
