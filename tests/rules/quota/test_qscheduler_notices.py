"""qscheduler's notices: they replace what was believed, unless they are older than what is known."""

from typing import Any

import pytest

from tests.rules.playing import Document, Played, a_pool, a_scenario, act, play_out, submit, tick, ticks
from tests.rules.qscheduler import POOL, ask, balances, held, idle, leases, play_quota, runs

TWO = {"slots": idle("lab-1", "lab-2")}
DIED = "component_died"


def confirm(at: float, name: str, slot: str, **more: Any) -> Document:
    return act(at, "confirm", {"reservation": name, "slot": slot, **more})


def report_idle(at: float, slot: str, **more: Any) -> Document:
    return act(at, "idle", {"slot": slot, **more})


def lab(*timeline: Document, **parts: Any) -> Played:
    """A scenario with one static pool under the queue `fifo`: the notices apply under every queue."""
    return play_out(a_scenario(*timeline, pools={"lab": POOL}, **parts))


class TestConfirm:
    def test_a_lease_that_is_reported_on_its_slot_is_confirmed_and_not_requeued(self) -> None:
        played = lab(
            ask(0, "r1"), tick(0), confirm(3, "r1", "lab-1"), tick(99), **TWO, scheduler={"confirm_timeout": 9}
        )
        assert played.ticks == [["assign r1 lab-1"], []]
        assert played.reservation("r1")["confirmed_at"] == 3

    def test_a_pending_reservation_that_is_reported_on_a_slot_is_leased_there(self) -> None:
        played = lab(ask(0, "r1", "r2"), confirm(0, "r1", "lab-2"), tick(0), **TWO)
        assert played.ticks == [["assign r2 lab-1"]]
        assert played.slots == {"lab-1": "ready r2", "lab-2": "ready r1"}
        assert played.events == [
            "0 reservation_submitted r1",
            "0 reservation_submitted r2",
            "0 reservation_leased r1",
            "0 reservation_leased r2",
        ]

    def test_a_pending_reservation_gets_the_level_that_it_would_get_and_has_no_cost_yet(self) -> None:
        played = play_quota(
            ask(0, "r1", account="A"), confirm(0, "r1", "lab-1"), tick(4), **TWO, accounts={"A": {"balance": [0, 9]}}
        )
        assert leases(played) == {"r1": (1, [0, 4])}
        assert balances(played) == {"A": [0, 5]}

    def test_a_reservation_that_is_leased_elsewhere_moves_with_its_level_and_cost(self) -> None:
        played = play_quota(
            confirm(2, "r1", "lab-2"),
            ask(2, "r2"),
            tick(2),
            slots=[runs("lab-1", "r1", 1, [0, 5]), *idle("lab-2")],
            reservations=[held("r1", "A")],
            accounts={"A": {"balance": [0, 9]}},
        )
        assert played.ticks == [["assign r2 lab-1 at 5"]]
        assert leases(played) == {"r2": (5, []), "r1": (1, [0, 7])}
        assert balances(played) == {"A": [0, 7]}

    def test_the_earlier_holder_of_the_slot_is_pending_with_its_queue_position(self) -> None:
        played = lab(ask(0, "r1"), tick(0), ask(1, "r2", "r3"), confirm(2, "r3", "lab-1"), tick(2), slots=idle("lab-1"))
        assert played.ticks[-1] == ["r1 waits no_capacity", "r2 waits no_capacity"]
        assert (played.phases, played.reservation("r1")["created_at"]) == (
            {"r1": "pending", "r2": "pending", "r3": "leased"},
            0,
        )

    def test_nothing_is_refunded_to_the_earlier_holder_of_the_slot(self) -> None:
        played = play_quota(
            ask(0, "r2"),
            confirm(3, "r2", "lab-1"),
            tick(3),
            slots=[runs("lab-1", "r1", 0, [5])],
            reservations=[held("r1", "A")],
            accounts={"A": {"balance": [9]}},
        )
        assert balances(played) == {"A": [6]}

    def test_an_unknown_reservation_is_not_created_and_its_slot_is_not_offered_until_it_is_idle(self) -> None:
        played = lab(
            ask(0, "r1"),
            tick(0),
            confirm(1, "ghost", "lab-1"),
            *ticks(1, 2),
            report_idle(3, "lab-1"),
            tick(3),
            slots=idle("lab-1"),
        )
        assert played.ticks[1:] == [["r1 waits no_capacity"], ["r1 waits no_capacity"], ["assign r1 lab-1"]]
        assert list(played.phases) == ["r1"]

    def test_on_a_slot_with_capacity_for_both_neither_lease_ends(self) -> None:
        pools = {"lab": {**POOL, "resources": {"cpus": 4}}}
        small: Any = {"resources": {"cpus": 2}}
        document = a_scenario(
            ask(0, "r1", "r2", **small),
            tick(0),
            ask(1, "r3", **small),
            confirm(1, "r3", "lab-2"),
            confirm(2, "r2", "lab-2"),
            ask(3, "r4", **small),
            confirm(3, "r4", "lab-2"),
            pools=pools,
            slots=idle("lab-1", "lab-2"),
        )
        # r4 takes the slot of the lease that was confirmed last there.
        played = play_out(document)
        assert played.slots == {"lab-1": "ready r1", "lab-2": "ready r2 r4"}
        assert played.phases["r3"] == "pending"

    @pytest.mark.parametrize("slot", ["lab-9", "lab-1"])
    def test_a_notice_about_an_unusable_slot_changes_nothing(self, slot: str) -> None:
        """An unknown slot, or one that does not serve."""
        played = lab(ask(0, "r1"), confirm(0, "r1", slot), slots=idle("lab-1", state="booting"))
        assert played.phases == {"r1": "pending"}

    def test_a_notice_brings_back_a_host_that_was_offline(self) -> None:
        pools = {"lab": {**POOL, "offline_timeout": 10}}
        parts = {"pools": pools, "slots": idle("lab-1")}
        silent = play_out(a_scenario(ask(50, "r1"), tick(50), **parts))
        assert silent.ticks == [["r1 waits no_capacity"]]
        back = play_out(a_scenario(ask(50, "r1"), confirm(50, "r1", "lab-1"), tick(50), **parts))
        assert back.slots == {"lab-1": "ready r1"}


class TestAbsent:
    @pytest.mark.parametrize("at", [0, 5])
    def test_a_reservation_that_is_absent_has_ended_with_its_lease(self, at: float) -> None:
        played = lab(ask(0, "r1"), *ticks(*([1] if at else [])), act(at, "absent", "r1"), tick(5), slots=idle("lab-1"))
        row = played.reservation("r1")
        assert (row["phase"], row["reason"], row["leases"]) == ("released", "absent", [])
        assert played.slots == {"lab-1": "ready"}

    @pytest.mark.parametrize(
        ("restart_policy", "expected"), [("on_failure", ("released", "absent", 1)), ("never", ("failed", DIED, 0))]
    )
    def test_an_absent_reservation_does_not_wait_for_a_restart(
        self, restart_policy: str, expected: tuple[str, str, int]
    ) -> None:
        """The restart of the failure at 3 is due after 16, one `restart_delay` after the restart at 1."""
        failed = [each for at in (1, 3) for each in (act(at, "fail", {"reservation": "r1"}), tick(at))]
        request = ask(0, "r1", restart_policy=restart_policy)
        played = lab(request, tick(0), *failed, act(5, "absent", "r1"), tick(30), slots=idle("lab-1"))
        row = played.reservation("r1")
        assert (row["phase"], row["reason"], row["restarts"]) == expected
        assert played.ticks[-1] == []

    def test_an_absent_reservation_that_has_ended_stays_as_it_ended(self) -> None:
        ends = (act(1, "cancel", "r1"), act(2, "absent", "r1"))
        played = lab(ask(0, "r1", restart_policy="on_failure"), *ends, slots=idle("lab-1"))
        assert played.phases == {"r1": "cancelled"}

    def test_an_absent_unknown_reservation_is_no_error(self) -> None:
        assert lab(act(0, "absent", "ghost"), **TWO).phases == {}

    def test_nothing_is_refunded_for_an_absent_reservation(self) -> None:
        played = play_quota(
            act(2, "absent", "r1"),
            tick(4),
            slots=[runs("lab-1", "r1", 0, [5])],
            reservations=[held("r1", "A")],
            accounts={"A": {"balance": [9]}},
        )
        assert balances(played) == {"A": [7]}


class TestIdle:
    def test_an_idle_slot_without_a_lease_has_the_reported_labels_and_is_offered(self) -> None:
        played = lab(
            ask(0, "r1", labels={"img": "2"}),
            tick(0),
            report_idle(1, "lab-1", labels={"img": "2"}),
            tick(1),
            slots=idle("lab-1", labels={"img": "1"}),
        )
        assert played.ticks == [["r1 waits never_fits"], ["assign r1 lab-1"]]

    def test_an_unconfirmed_assignment_is_held_however_often_its_slot_is_reported_idle(self) -> None:
        played = lab(
            ask(0, "r1"),
            tick(0),
            *(report_idle(at, "lab-1", labels={"img": "2"}) for at in (0, 0, 7)),
            tick(7),
            slots=idle("lab-1", labels={"img": "1"}),
        )
        assert played.slots == {"lab-1": "ready r1"}
        assert played.state["slots"][0]["labels"] == {"img": "1"}

    def test_a_confirmed_reservation_has_ended_if_its_slot_is_idle(self) -> None:
        played = lab(
            ask(0, "r1"),
            tick(0),
            confirm(1, "r1", "lab-1"),
            report_idle(1, "lab-1", labels={"img": "2"}),
            ask(2, "r2", labels={"img": "2"}),
            tick(2),
            slots=idle("lab-1", labels={"img": "1"}),
        )
        row = played.reservation("r1")
        assert (row["phase"], row["reason"], row["finished_at"]) == ("released", "idle", 1)
        assert played.slots == {"lab-1": "ready r2"}

    def test_a_lease_of_a_slot_record_counts_as_confirmed(self) -> None:
        played = lab(report_idle(1, "lab-1"), slots=[runs("lab-1", "r1")], reservations=[held("r1")])
        assert played.phases == {"r1": "released"}


class TestSubmit:
    @pytest.mark.parametrize("end", [[], [act(1, "absent", "r1")], [act(1, "cancel", "r1")]])
    def test_a_known_id_changes_neither_labels_nor_account_in_any_phase(self, end: list[Document]) -> None:
        played = play_quota(
            ask(0, "r1", account="A"),
            *end,
            ask(2, "r1", account="B", labels={"img": "9"}),
            tick(2),
            **TWO,
            accounts={"A": {"balance": [9]}, "B": {"balance": [0, 9]}},
        )
        assert played.ticks == [[] if end else ["assign r1 lab-1 at 0"]]


DATED: dict[str, tuple[list[Document], dict[str, str]]] = {
    # r1 was assigned at 10, and is not confirmed yet
    "confirm older than the assignment": ([confirm(12, "r1", "lab-1", as_of=9)], {"confirmed_at": "None"}),
    "confirm as old as the assignment": ([confirm(12, "r1", "lab-1", as_of=10)], {"confirmed_at": "10"}),
    "an older confirm elsewhere": ([confirm(12, "r1", "lab-2", as_of=9)], {"slot": "lab-1"}),
    "a confirm elsewhere, as old": ([confirm(12, "r1", "lab-2", as_of=10)], {"slot": "lab-2"}),
    "absent, older": ([act(12, "absent", {"reservation": "r1", "as_of": 9})], {"phase": "leased"}),
    "absent, as old": ([act(12, "absent", {"reservation": "r1", "as_of": 10})], {"phase": "released"}),
    "idle older than the confirmation": (
        [confirm(12, "r1", "lab-1"), report_idle(13, "lab-1", as_of=11)],
        {"phase": "leased"},
    ),
    "idle as old as the confirmation": (
        [confirm(12, "r1", "lab-1"), report_idle(13, "lab-1", as_of=12)],
        {"phase": "released"},
    ),
    "idle as old as a dated confirmation": (
        [confirm(12, "r1", "lab-1", as_of=11), report_idle(13, "lab-1", as_of=11)],
        {"phase": "released"},
    ),
    "a confirm elsewhere that is older than what is known of that slot": (
        [report_idle(14, "lab-2"), confirm(15, "r1", "lab-2", as_of=13)],
        {"slot": "lab-1"},
    ),
    "a confirm elsewhere that is as old as what is known of that slot": (
        [report_idle(14, "lab-2"), confirm(15, "r1", "lab-2", as_of=14)],
        {"slot": "lab-2"},
    ),
    "of two confirms the newer one counts, whatever their order": (
        [confirm(15, "r1", "lab-2", as_of=14), confirm(15, "r1", "lab-1", as_of=13)],
        {"slot": "lab-2", "confirmed_at": "14"},
    ),
    "a time in the future counts as now": (
        [confirm(12, "r1", "lab-1", as_of=99), report_idle(13, "lab-1", as_of=12.5)],
        {"phase": "released"},
    ),
}


@pytest.mark.parametrize("case", DATED)
def test_a_newer_notice_counts_and_an_equal_one_and_an_older_one_is_ignored(case: str) -> None:
    notices, expected = DATED[case]
    played = lab(ask(10, "r1"), tick(10), *notices, **TWO)
    row = played.reservation("r1")
    found = {
        "phase": row["phase"],
        "confirmed_at": f"{row['confirmed_at']:g}" if row["confirmed_at"] is not None else "None",
        "slot": "".join(lease["slot"] for lease in row["leases"]),
    }
    assert {key: found[key] for key in expected} == expected


BACKDATED: dict[str, tuple[Document, dict[str, Any]]] = {
    # r1 was pending until a confirm at 7, which is about 5
    "idle about an earlier time": (report_idle(8, "lab-1", as_of=4), {"phase": "leased"}),
    "idle about the same time": (report_idle(8, "lab-1", as_of=5), {"phase": "released"}),
    "idle about a time between": (report_idle(8, "lab-1", as_of=6), {"phase": "released"}),
    "absent about an earlier time": (act(8, "absent", {"reservation": "r1", "as_of": 4}), {"phase": "leased"}),
    "absent about a time between": (act(8, "absent", {"reservation": "r1", "as_of": 6}), {"phase": "released"}),
    "confirm about a time between": (confirm(8, "r1", "lab-1", as_of=6), {"confirmed_at": 6}),
    "confirm elsewhere about an earlier time": (confirm(8, "r1", "lab-2", as_of=4), {"confirmed_at": 5}),
    "confirm elsewhere about a time between": (confirm(8, "r1", "lab-2", as_of=6), {"confirmed_at": 6}),
    "confirm of another one about a time between": (confirm(8, "r2", "lab-1", as_of=6), {"phase": "pending"}),
}


@pytest.mark.parametrize("case", BACKDATED)
def test_a_lease_by_a_notice_is_known_since_the_time_of_the_notice(case: str) -> None:
    notice, expected = BACKDATED[case]
    row = lab(ask(0, "r1"), ask(0, "r2"), confirm(7, "r1", "lab-1", as_of=5), notice, **TWO).reservation("r1")
    assert {key: row[key] for key in expected} == expected


ENDED_AT_5: dict[str, tuple[list[Document], str, str]] = {
    # r1 is confirmed on lab-1 at 1; a notice at 7, which is about 5, ends that; the next one is about a time between
    "idle, then a confirm of another one there": ([report_idle(7, "lab-1", as_of=5)], "r2", "lab-1"),
    "absent, then a confirm of another one there": (
        [act(7, "absent", {"reservation": "r1", "as_of": 5})],
        "r2",
        "lab-1",
    ),
    "a confirm elsewhere, then one of another one there": ([confirm(7, "r1", "lab-2", as_of=5)], "r2", "lab-1"),
    "a confirm of another one there, then one of it elsewhere": ([confirm(7, "r2", "lab-1", as_of=5)], "r1", "lab-2"),
    "a confirm of an unknown one there, idle, then a confirm of it there": (
        [confirm(7, "ghost", "lab-1", as_of=5), report_idle(7, "lab-1", as_of=5.5)],
        "r1",
        "lab-1",
    ),
}


@pytest.mark.parametrize("as_of", [4, 6])
@pytest.mark.parametrize("case", ENDED_AT_5)
def test_a_lease_that_a_notice_ended_has_ended_at_the_time_of_the_notice(case: str, as_of: float) -> None:
    notices, name, slot = ENDED_AT_5[case]
    begin = (ask(0, "r1"), tick(0), ask(0, "r2"), confirm(1, "r1", "lab-1"))
    played = lab(*begin, *notices, confirm(8, name, slot, as_of=as_of), **TWO)
    assert (played.reservation(name)["confirmed_at"] == 6) == (as_of == 6)


def test_labels_of_an_older_idle_notice_do_not_count() -> None:
    played = lab(
        report_idle(5, "lab-1", labels={"img": "2"}),
        report_idle(6, "lab-1", labels={"img": "3"}, as_of=4),
        slots=idle("lab-1"),
    )
    assert played.state["slots"][0]["labels"] == {"img": "2"}


@pytest.mark.parametrize(
    ("at", "expected"), [(599, [[], []]), (600, [[], ["requeue r1 unconfirmed", "assign r1 lab-1"]])]
)
def test_an_assignment_that_is_not_confirmed_in_time_returns_to_the_queue(at: float, expected: list[list[str]]) -> None:
    played = lab(ask(0, "r1"), tick(0), *ticks(0, at), slots=idle("lab-1"), scheduler={"confirm_timeout": 600})
    assert played.ticks[1:] == expected
    assert played.reservation("r1")["created_at"] == 0


def test_a_reservation_fails_after_max_unconfirmed_assignments() -> None:
    played = lab(
        ask(0, "r1"),
        *ticks(0, 10, 20, 30),
        slots=idle("lab-1"),
        scheduler={"confirm_timeout": 10, "max_unconfirmed": 2},
    )
    assert [line[0] for line in played.ticks[1:]] == ["requeue r1 unconfirmed"] * 2 + ["fail r1 unconfirmed"]


def test_a_timeout_of_0_changes_nothing_in_what_notices_do() -> None:
    parts = {**TWO, "scheduler": {"confirm_timeout": 0}}
    assert lab(ask(0, "r1"), tick(0), report_idle(0, "lab-1"), **parts).phases == {"r1": "leased"}


def test_notices_request_a_tick() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1"),
            act(5, "idle", {"slot": "linux-1"}),
            pools={"linux": a_pool(provider="static", max_slots=None)},
            slots=[{"id": "linux-1", "pool": "linux", "last_seen": -500}],
            kicks=True,
        )
    )
    assert played.ticks_at == {0: ["r1 waits no_capacity"], 5: ["assign r1 linux-1"]}


@pytest.mark.parametrize(
    ("notice", "event"),
    [
        (report_idle(5, "lab-1"), "reservation_released"),
        (act(5, "confirm", {"reservation": "another", "slot": "lab-1"}), "reservation_pending"),
    ],
    ids=["idle", "an unknown one runs there"],
)
def test_leases_of_one_slot_end_in_order_of_submission(notice: Document, event: str) -> None:
    """Not in the order of a set, which is another one in each process."""
    names = ["r3", "r1", "r6", "r2", "r5", "r4", "r8", "r7"]
    played = play_out(
        a_scenario(
            notice,
            pools={"lab": {**POOL, "max_leases_per_slot": len(names)}},
            slots=[{**idle("lab-1")[0], "leases": [{"reservation": each} for each in sorted(names)]}],
            reservations=[held(each) for each in names],
        )
    )
    assert played.events == [f"5 {event} {name}" for name in names]
