"""The conditions of lists of reservations, which the API and the pages read from their addresses."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler.model.reservations import Reservation


@dataclass(frozen=True)
class ReservationMatch:
    """Conditions on reservations; a reservation must match all. `fields`: field of the request (account, pool, system)
    -> value. `slot`: the slot of one of its leases. `id_start`: the beginning of its id. None: any.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    slot: str | None = None
    id_start: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def matches(self, row: Reservation) -> bool:
        """Return whether a reservation matches."""
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
        """Whether every reservation matches."""
        return self == ReservationMatch()
