"""A lease whose elastic parts come and go: what its holder is told, and how it gives parts back."""

from itertools import islice
from typing import Any

from leasehold import Client
from tests.builders import a_lease, a_slot
from tests.client.intake import Document, FakeIntake
from tests.client.test_lease import WAIT, Holder

CORE = a_lease("linux-1", token=1)


def part(number: int, token: int, **fields: Any) -> Any:
    """The lease of one elastic instance."""
    return a_lease("linux-1", component=f"more.{number}", kind="elastic", token=token, **fields)


class Stretched(Holder):
    """A holder with elastic parts; what it surrenders is gone at once."""

    def handle(self, verb: str, document: Document) -> Document | None:
        if verb == "surrender":
            left = tuple(each for each in self.fields["leases"] if each.component != document["component"])
            self.publish(document["reservation"], leases=left)
            return self.describe(document["reservation"])
        return super().handle(verb, document)


def test_the_holder_is_told_of_every_part_that_comes_has_to_go_and_is_gone(intake: FakeIntake, client: Client) -> None:
    holder = Stretched(intake)
    holder.fields["leases"] = (CORE, part(0, 2))
    told = []
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        changes = lease.changes(timeout=WAIT)
        told.append(next(changes))
        holder.publish("r1", leases=(CORE, part(0, 2), part(1, 3)))
        told.append(next(changes))
        holder.publish("r1", leases=(CORE, part(0, 2), part(1, 3, state="revoking", revoke_by=9e9)))
        told.append(next(changes))
        holder.publish("r1", leases=(CORE, part(0, 2)))
        told.append(next(changes))
        assert not lease.revoking.is_set()
    assert [(each.kind, each.component, each.placement.token, each.deadline) for each in told] == [
        ("granted", "more.0", 2, None),
        ("granted", "more.1", 3, None),
        ("revoking", "more.1", 3, 9e9),
        ("revoked", "more.1", 3, 9e9),
    ]
    assert str(told[0]) == "more.0 on linux-1 granted"


def test_an_instance_that_is_granted_anew_is_another_one(intake: FakeIntake, client: Client) -> None:
    """Its token tells them apart, though the view never showed it gone."""
    holder = Stretched(intake)
    holder.fields["leases"] = (CORE, part(0, 2))
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        changes = lease.changes(timeout=WAIT)
        next(changes)
        holder.publish("r1", leases=(CORE, part(0, 5)))
        told = [next(changes), next(changes)]
    assert [(each.kind, each.placement.token) for each in told] == [("revoked", 2), ("granted", 5)]


def test_what_is_surrendered_is_named_with_the_lease_s_token(intake: FakeIntake, client: Client) -> None:
    holder = Stretched(intake)
    holder.fields["leases"] = (CORE, part(0, 2))
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert lease.surrender("more.0").ok
        told = [change.kind for change in islice(lease.changes(timeout=WAIT), 2)]
        assert [each.component for each in lease.placements] == ["main"]
    [said] = [document for verb, document in intake.seen if verb == "surrender"]
    assert (said["reservation"], said["component"], said["token"]) == ("r1", "more.0", 1)
    assert told == ["granted", "revoked"]


def test_the_changes_end_with_the_lease_and_each_reader_gets_all_of_them(intake: FakeIntake, client: Client) -> None:
    holder = Stretched(intake)
    holder.fields["leases"] = (CORE, part(0, 2))
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        first = next(lease.changes())
    assert [list(lease.changes()), list(lease.changes())] == [[first], [first]]


def test_a_reader_may_look_for_a_moment_only(intake: FakeIntake, client: Client) -> None:
    Stretched(intake)
    intake.view_cache.publish([a_slot("linux-1", version=2)])
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert list(lease.changes(timeout=0)) == []


def test_the_holder_is_told_how_many_cores_each_instance_may_use(intake: FakeIntake, client: Client) -> None:
    """Essential ones too. It starts at its own cpus; what it asked for says nothing of what others leave it."""
    holder = Stretched(intake)
    alone, shared = (a_lease("linux-1", token=1, resources={"cpus": 1}, cores=cores) for cores in (8.0, 3.5))
    helper = part(0, 2, resources={"cpus": 2})
    holder.fields["leases"] = (alone,)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        changes = lease.changes(timeout=WAIT)
        told = [next(changes)]
        assert lease.cores == 8
        holder.publish("r1", leases=(shared, helper))
        told += [next(changes), next(changes)]
        assert (lease.cores, lease.placements[1].usable_cores) == (3.5, 2)
    assert [(each.kind, each.component, each.cores) for each in told] == [
        ("cores", "main", 8.0),
        ("granted", "more.0", 2.0),
        ("cores", "main", 3.5),
    ]
    assert str(told[2]) == "main on linux-1 may use 3.5 cores"
