"""Pause the garbage collector while many objects are made that stay: in a cycle, and during imports."""

import gc


class PausedGC:
    """A block during which the garbage collector is paused; it runs again afterwards if it ran before.

    A cycle makes hundreds of thousands of objects and drops few of them before it ends. Collections meanwhile find
    nothing and take a tenth of the time of a plan, more in a large fleet. A later collection finds the rest.

    Imports make some hundred thousand objects, too, and nearly all of them stay. Collections take a fifth of the time
    that the import of Celery and SQLAlchemy needs, and a third of moto's; a stack starts a dozen processes.
    """

    # A class, not a generator: __exit__ allocates nothing, so no collection starts inside it.
    _was_enabled = False

    def __enter__(self) -> None:
        """Pause the collector."""
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        """Let the collector run again."""
        if self._was_enabled:
            gc.enable()
