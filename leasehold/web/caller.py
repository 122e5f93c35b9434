"""The sender of an HTTP request, as the gate has identified it, and the principals of the cluster, as a process of the
console last read them from the database.
"""

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from leasehold.errors import Fault, Refused
from scheduler.model.principals import ROLES_BY_VERB
from scheduler.ports import Store, StoreUnavailableError
from scheduler.protocol.verbs import QUESTIONS, Role
from workers.access import LOOK_SECONDS, KnownPrincipals, read_principals

Source = Literal["token", "principal", "proxy"]
TOKEN_NAME: Final = "local token"  # noqa: S105 - a name
"""Name in the log of a caller that has the token of the local stack."""


@dataclass(frozen=True)
class Caller:
    """The sender of an HTTP request.

    `name`: the name for the log. `source`: how the caller proved its identity: by the random token of a local stack
    (`token`), by the key of a principal (`principal`), or by the header of a trusted reverse proxy (`proxy`).
    `principal`: the principal as which requests to the workers are signed; None: they are not signed. `refusal`: why
    this caller may change nothing, whatever its role is; None: its role decides.
    """

    name: str
    role: Role
    source: Source
    principal: str | None
    refusal: str | None = None

    def may(self, verb: str) -> bool:
        """Return whether this caller may send a request with this verb to the workers. The worker checks the right
        again.
        """
        return self.find_refusal(verb) is None

    def find_refusal(self, verb: str) -> str | None:
        """Return a sentence that explains why this caller may not send a request with this verb, or None if the caller
        may.
        """
        roles = ROLES_BY_VERB.get(verb, frozenset[Role]({"operator"}))
        if self.role not in roles:
            return f"{self.name} has the role {self.role}; this needs the role {' or '.join(sorted(roles))}"
        return None if verb in QUESTIONS else self.refusal

    @property
    def can_look(self) -> bool:
        """Whether this caller may see the pages and lists: its role must permit to query reservations."""
        return self.may("query")


def find_caller(request: Request) -> Caller:
    """Return the caller of a request, which the entrance of the web server identified."""
    found: Caller = request.state.caller
    return found


Handler = Callable[[Request], Awaitable[Response]]


def needs(verb: str) -> Callable[[Handler], Handler]:
    """Return a decorator for the handler of a route. It refuses a request whose caller may not use this verb before the
    handler reads anything of the request. The route then answers with status 403.
    """

    def wrap(handler: Handler) -> Handler:
        @wraps(handler)
        async def answer(request: Request) -> Response:
            if refusal := find_caller(request).find_refusal(verb):
                raise Refused([Fault(0, "principal", f"a caller that may use `{verb}`", refusal, "forbidden")])
            return await handler(request)

        return answer

    return wrap


AGAIN_SECONDS: Final = 0.1


class PrincipalReader:
    """Reads the principals at most once a second. Safe for threads.

    While the database does not answer, the last copy stays in use: no principal can be removed in that time either.
    """

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.store, self.monotonic = store, monotonic
        self._guard = threading.Lock()
        self._known: KnownPrincipals | None = None
        self._tried_at = float("-inf")

    @property
    def is_fresh(self) -> bool:
        """Whether `read` returns at once, because the copy is less than LOOK_SECONDS old or is being read now."""
        return self._known is not None and self.monotonic() - self._tried_at < LOOK_SECONDS

    def read(self) -> KnownPrincipals:
        """Return the principals, read at most LOOK_SECONDS ago, or earlier while the database does not answer. Raises
        StoreUnavailableError if the database was never read.
        """
        known = self._known
        if known is not None and self.is_fresh:
            return known
        with self._guard:
            if self._known is not None and self.is_fresh:
                return self._known
            self._tried_at = self.monotonic()
            try:
                self._known = read_principals(self.store, self._known, self.monotonic)
            except StoreUnavailableError:
                if self._known is None:
                    raise
            return self._known

    def look_again(self) -> None:
        """Read the database again, for a principal or a key that may be new. Call it in a thread that may wait, and not
        before `again_in` seconds have passed, so that wrong keys cannot keep the database busy.
        """
        self.forget()
        self.read()

    @property
    def again_in(self) -> float:
        """Seconds until `look_again` may be called: AGAIN_SECONDS after the last read."""
        return max(0.0, self._tried_at + AGAIN_SECONDS - self.monotonic())

    def forget(self) -> None:
        """Read the database at the next use, because a principal has just changed."""
        self._tried_at = float("-inf")
