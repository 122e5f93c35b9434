"""Step 9 of the naive tick: each lease of a slot may use its own cpus, and its part of the spare ones."""

from tests.reference_model.picture import HOLDING, Amounts, Picture, Site


def share(picture: Picture) -> None:
    """Zoe: "own `cpus` + max(0, slot's cpus − sum of the leases' cpus) / n"; decided when it is another figure.

    With `share_cores` off a lease may use its own cpus only.
    """
    found = []
    for site in picture.sites:
        if site.capacity is None or "cpus" not in site.capacity or site.row.state not in HOLDING:
            continue
        users = _list_users(picture, site)
        spare = max(0.0, site.capacity["cpus"] - sum(own for _, _, own, _ in users))
        system = picture.rules.pools[site.row.pool].system
        settings = picture.rules.scheduler.system.get(system, picture.rules.scheduler)
        spare = spare if settings.share_cores else 0.0
        for name, component, own, known in users:
            cores = own + spare / len(users)
            if abs(cores - known) > 1e-6:
                found.append(("cores", name, component, site.id, f"{cores:.9g}"))
    for each in picture.reservations:
        for words in found:
            if words[1] == each.id:
                picture.decide(*words)


def _list_users(picture: Picture, site: Site) -> list[tuple[str, str, float, float]]:
    """Reservation, component, its own cpus and the number that it may use so far, in order of submission."""
    found = []
    for each in picture.reservations:
        for lease in each.leases:
            if (each.id, lease.component) in site.leases:
                own = _own(lease.resources)
                found.append((each.id, lease.component, own, own if lease.cores is None else lease.cores))
        for name, component, given in site.came:
            if name == each.id:
                found.append((name, component, _own(given), _own(given)))
    return found


def _own(given: Amounts) -> float:
    return given.get("cpus", 0.0)
