"""Conditions that select reservations for a list. The API and the pages read them from the query of an address."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.model.reservations import Reservation


@dataclass(frozen=True)
class ReservationMatch:
    """Conditions on a reservation; a reservation must meet all. `fields`: field of the request (account, pool, system)
    -> its value. `slot`: a slot on which it has a lease. `id_start`: the beginning of its id. `tags`, `labels`: pairs
    that its request must contain. A condition that is None or empty is met by every reservation.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    slot: str | None = None
    id_start: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, row: Reservation) -> bool:
        """Return whether a reservation meets all conditions."""
        request = row.request
        return (
            (self.id_start is None or row.id.startswith(self.id_start))
            and all(getattr(request, name) == value for name, value in self.fields.items())
            and (self.slot is None or any(lease.slot == self.slot for lease in row.leases))
            and self.tags.items() <= request.tags.items()
            and self.labels.items() <= request.labels.items()
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition, so that every reservation matches."""
        return self == ReservationMatch()
