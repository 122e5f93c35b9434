"""A process that is killed at the Nth call of any port."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Killed(BaseException):
    """The process was killed here. No code of the scheduler catches this exception."""


class Saboteur:
    """Kills the process at the Nth call of any port, before or after the call took effect."""

    def __init__(self, at: int, *, afterwards: bool) -> None:
        self.at, self.afterwards, self.calls = at, afterwards, 0
        self.places: list[str] = []
        """The called methods, in order."""

    def wrap(self, port: Any, name: str) -> Any:
        """Return the port with all its calls counted."""
        return _Counted(port, name, self)

    def call(self, name: str, act: Callable[[], Any]) -> Any:
        """Make one call; raise Killed if it is number `at`."""
        self.calls += 1
        self.places.append(name)
        if self.calls != self.at:
            return act()
        if self.afterwards:
            act()
        raise Killed(name)


class _Counted:
    def __init__(self, port: Any, name: str, saboteur: Saboteur) -> None:
        self._port, self._name, self._saboteur = port, name, saboteur

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found
        full = f"{self._name}.{name}"
        if name == "transaction":
            return lambda: self._transaction(found)
        return lambda *args, **more: self._saboteur.call(full, lambda: found(*args, **more))

    @contextmanager
    def _transaction(self, begin: Callable[[], Any]) -> Iterator[Any]:
        """Raise Killed before the commit, so that it rolls back, or after the commit."""
        saboteur = self._saboteur
        with begin() as transaction:
            yield _Counted(transaction, "transaction", saboteur)
            if not saboteur.afterwards:
                saboteur.call("transaction.commit", lambda: None)
        if saboteur.afterwards:
            saboteur.call("transaction.commit", lambda: None)
