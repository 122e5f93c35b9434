"""The sender of an HTTP request, as the gate has identified it."""

from dataclasses import dataclass
from typing import Final, Literal

from scheduler.model.rights import ROLES_BY_VERB
from scheduler.protocol.verbs import QUESTIONS, Role

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
