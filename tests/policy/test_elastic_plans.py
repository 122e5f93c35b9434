"""Sums that must hold for every plan with elastic components, whatever the fleet and the setting of `elastic`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.decisions import Assign, Grant, Revoke
from scheduler.model.reservations import Reservation, list_instances
from tests.policy.fleets import QUICKLY, fleets
from tests.policy.test_plans import (
    every_decision_is_accepted,
    everyone_who_waits_is_told_why,
    no_reservation_is_lost,
    no_slot_is_overfull,
    nothing_is_due_before_it_wakes,
    spare_cores_are_shared,
    the_plan_is_pure,
)
from tests.policy.watching import Seen, watch
from tests.scenarios.playing import Document

pytestmark = pytest.mark.no_cover
SOME = settings(QUICKLY, max_examples=30)


def essential_instances_are_never_reclaimed(seen: Seen) -> None:
    rows = {row.id: row for row in seen.before if isinstance(row, Reservation)}
    for decision in seen.plan.decisions:
        if isinstance(decision, Revoke):
            elastic = {each.name for each in list_instances(rows[decision.reservation].request, "elastic")}
            assert decision.component in elastic


def nothing_is_taken_back_where_the_setting_only_gives(seen: Seen) -> None:
    for decision in seen.plan.decisions:
        if isinstance(decision, Revoke) and seen.rules.scheduler.elastic in {"rigid", "malleable"}:
            assert decision.reason != "reclaimed"


def what_is_revoked_for_an_assignment_comes_before_it(seen: Seen) -> None:
    served: set[str] = set()
    for decision in seen.plan.decisions:
        match decision:
            case Assign():
                served.add(decision.reservation)
            case Revoke(room_for=str() as name):
                assert name not in served
            case Grant(reservation=name) if name in {row.id for row in seen.before if _is_pending(row)}:
                assert name in served
            case _:
                pass


def _is_pending(row: object) -> bool:
    return isinstance(row, Reservation) and row.phase == "pending"


@SOME
@given(fleets(elastic=True))
def test_every_plan_with_elastic_instances_keeps_to_the_rules(fleet: Document) -> None:
    watch(
        fleet,
        no_slot_is_overfull,
        no_reservation_is_lost,
        everyone_who_waits_is_told_why,
        every_decision_is_accepted,
        essential_instances_are_never_reclaimed,
        nothing_is_taken_back_where_the_setting_only_gives,
        what_is_revoked_for_an_assignment_comes_before_it,
        the_plan_is_pure,
        spare_cores_are_shared,
    )


@SOME
@given(fleets(elastic=True), st.booleans())
def test_a_tick_serves_all_that_it_can_and_wakes_when_the_next_thing_falls_due(fleet: Document, wakes: bool) -> None:
    """Work is conserved: on what a tick leaves, another one finds nothing to do."""
    watch({**fleet, "wakes": wakes, "kicks": wakes}, nothing_is_due_before_it_wakes)
