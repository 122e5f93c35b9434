"""A lease with elastic instances: the changes that its holder receives, and how the holder surrenders an instance."""

from itertools import islice
from typing import Any

from leasehold import Client
from tests.builders import a_lease, a_slot
from tests.client.intake import Document, FakeIntake
from tests.client.test_lease import WAIT, FakeReservation

CORE = a_lease("linux-1", token=1)


def elastic_lease(number: int, token: int, **fields: Any) -> Any:
    return a_lease("linux-1", component=f"more.{number}", kind="elastic", token=token, **fields)


class ElasticReservation(FakeReservation):
    """A reservation with elastic instances; a surrendered instance ends at once."""

    def handle(self, verb: str, document: Document) -> Document | None:
        if verb == "surrender":
            left = tuple(each for each in self.fields["leases"] if each.component != document["component"])
            self.publish(document["reservation"], leases=left)
            return self.describe(document["reservation"])
        return super().handle(verb, document)


def test_the_holder_receives_each_grant_revocation_and_end_of_an_elastic_instance(
    intake: FakeIntake, client: Client
) -> None:
    holder = ElasticReservation(intake)
    holder.fields["leases"] = (CORE, elastic_lease(0, 2))
    received = []
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        changes = lease.changes(timeout=WAIT)
        received.append(next(changes))
        holder.publish("r1", leases=(CORE, elastic_lease(0, 2), elastic_lease(1, 3)))
        received.append(next(changes))
        holder.publish("r1", leases=(CORE, elastic_lease(0, 2), elastic_lease(1, 3, state="revoking", revoke_by=9e9)))
        received.append(next(changes))
        holder.publish("r1", leases=(CORE, elastic_lease(0, 2), elastic_lease(1, 3, state="revoking", revoke_by=8e9)))
        received.append(next(changes))
        holder.publish("r1", leases=(CORE, elastic_lease(0, 2)))
        received.append(next(changes))
        assert not lease.revoking.is_set()
    assert [(each.kind, each.component, each.placement.token, each.deadline) for each in received] == [
        ("granted", "more.0", 2, None),
        ("granted", "more.1", 3, None),
        ("revoking", "more.1", 3, 9e9),
        ("revoking", "more.1", 3, 8e9),
        ("revoked", "more.1", 3, 8e9),
    ]
    assert str(received[0]) == "more.0 on linux-1 granted"


def test_an_instance_that_is_granted_again_is_a_new_instance(intake: FakeIntake, client: Client) -> None:
    """The token differs, although the view never showed the instance without a lease."""
    holder = ElasticReservation(intake)
    holder.fields["leases"] = (CORE, elastic_lease(0, 2))
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        changes = lease.changes(timeout=WAIT)
        next(changes)
        holder.publish("r1", leases=(CORE, elastic_lease(0, 5)))
        received = [next(changes), next(changes)]
    assert [(each.kind, each.placement.token) for each in received] == [("revoked", 2), ("granted", 5)]


def test_a_surrender_carries_the_token_of_the_lease(intake: FakeIntake, client: Client) -> None:
    holder = ElasticReservation(intake)
    holder.fields["leases"] = (CORE, elastic_lease(0, 2))
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert lease.surrender("more.0", want=3).ok
        received = [change.kind for change in islice(lease.changes(timeout=WAIT), 2)]
        assert [each.component for each in lease.placements] == ["main"]
    [request] = [document for verb, document in intake.seen if verb == "surrender"]
    assert [request[key] for key in ("reservation", "component", "token", "want")] == ["r1", "more.0", 1, 3]
    assert received == ["granted", "revoked"]


def test_the_changes_end_with_the_lease_and_each_iterator_yields_all_of_them(
    intake: FakeIntake, client: Client
) -> None:
    holder = ElasticReservation(intake)
    holder.fields["leases"] = (CORE, elastic_lease(0, 2))
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        first = next(lease.changes())
    assert [list(lease.changes()), list(lease.changes())] == [[first], [first]]


def test_changes_with_a_timeout_of_zero_return_at_once(intake: FakeIntake, client: Client) -> None:
    ElasticReservation(intake)
    intake.view_cache.publish([a_slot("linux-1", version=2)])
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert list(lease.changes(timeout=0)) == []


def test_the_holder_receives_how_many_cores_each_instance_may_use(intake: FakeIntake, client: Client) -> None:
    """This holds for essential instances too. `granted` reports the cores that an elastic instance requested."""
    holder = ElasticReservation(intake)
    alone, shared = (a_lease("linux-1", token=1, resources={"cpus": 1}, cores=cores) for cores in (8.0, 3.5))
    helper = elastic_lease(0, 2, resources={"cpus": 2})
    holder.fields["leases"] = (alone,)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        changes = lease.changes(timeout=WAIT)
        received = [next(changes)]
        assert lease.cores == 8
        holder.publish("r1", leases=(shared, helper))
        received += [next(changes), next(changes)]
        assert (lease.cores, lease.placements[1].usable_cores) == (3.5, 2)
    assert [(each.kind, each.component, each.cores) for each in received] == [
        ("cores", "main", 8.0),
        ("granted", "more.0", 2.0),
        ("cores", "main", 3.5),
    ]
    assert str(received[2]) == "main on linux-1 may use 3.5 cores"
