"""The pages about reservations, accounts, queues, events and rules, without a worker: what they show, and their
filters.
"""

import re
from html import unescape
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from leasehold.client.loop_client import LoopClient
from leasehold.client.models import Explanation, SmallestChange
from leasehold.client.models import Reservation as ShownReservation
from leasehold.console.pages.reservation import describe_state, draw_life
from leasehold.console.pages.what_if import compare_rules
from leasehold.errors import Fault, LeaseholdError, NotAnswered, Overloaded, Refused, Unavailable
from scheduler.model.events import Event
from scheduler.model.reservations import Reservation
from scheduler.model.waits import Reason, Waits
from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import make_key
from testbed.processes import wait_for
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot
from tests.console.conftest import MakeConsole
from tests.console.served import Browser, Console
from tests.console.test_gate import basic

KEY = make_key()


def row(name: str, number: int, **changes: object) -> Reservation:
    """Return a reservation as the store writes it."""
    return a_reservation(name, version=1, marked_at=1_800_000_000.0 + number, sequence=number, **changes)


@pytest.fixture
def console(make_console: MakeConsole) -> Console:
    rows = [row(f"build-{number}", number) for number in range(1, 121)]
    return make_console(tuple(rows))


def plain(text: str) -> str:
    """Return the text of a page without its markup and with single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def listed(text: str) -> list[str]:
    return re.findall(r'href="/reservations/([^"/]+)"', text)


def test_a_list_has_fifty_rows_and_leads_to_the_next_ones(console: Console) -> None:
    browser = console.entered()
    first = browser.get("/reservations?phase=pending")
    assert listed(first.text) == [f"build-{number}" for number in range(1, 51)]
    following = re.search(r'rel="next" href="([^"]+)"', first.text)
    assert following is not None
    second = browser.get(following[1].replace("&amp;", "&"))
    assert listed(second.text) == [f"build-{number}" for number in range(51, 101)]


def test_a_list_of_all_phases_has_the_newest_first(console: Console) -> None:
    assert listed(console.entered().get("/reservations").text)[:2] == ["build-120", "build-119"]


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("phase=sleeping", "phase: expected one of"),
        ("tag=plain", "tag: expected KEY=VALUE, got plain"),
        ("after=x", "after: expected the number of a row"),
        ("colour=red", "colour: this filter is not known"),
        ("sort=colour", "sort: expected a column, one of id, phase"),
        ("group=colour", "group: expected why, account or tag:KEY"),
    ],
)
def test_a_broken_filter_is_named_on_the_page(console: Console, query: str, fault: str) -> None:
    answer = console.entered().get(f"/reservations?{query}")
    assert answer.status == 200
    assert fault in answer.text


@pytest.mark.parametrize("page", ["0", "two", "1000001", "000000001" + 5000 * "0"])
def test_a_wrong_number_of_a_page_of_slots_is_named(console: Console, page: str) -> None:
    for path in ("/fleet", "/fleet/table"):
        assert "page: expected a number from 1" in console.entered().get(f"{path}?page={page}").text


def test_the_filters_select_rows(console: Console) -> None:
    console.publish(row("other", 500, account="ci", tags={"team": "web"}))
    browser = console.entered()
    for query in ("account=ci", "tag=team%3Dweb", "id=oth"):
        assert listed(browser.get(f"/reservations?{query}").text) == ["other"]


def shown(console: Console, query: str) -> list[str]:
    return listed(console.entered().get(f"/reservations?{query}").text)


@pytest.fixture
def mixed(make_console: MakeConsole) -> Console:
    """A console with reservations of three accounts in several phases, and the report of a tick."""
    lease = a_lease("linux-7", resources={"cpus": 4.0})
    console = make_console(
        (
            row(
                "small",
                1,
                created_at=NOW - 20,
                changed_at=NOW - 20,
                account="ci",
                tags={"team": "web"},
                components=(a_component(resources={"cpus": 1.5}),),
            ),
            row(
                "gang",
                2,
                changed_at=NOW - 10,
                created_at=NOW - 20,
                account="qa",
                components=(a_component("worker", count=3, resources={"cpus": 8.0}),),
            ),
            row("new", 3, account="ci", tags={"team": "ml"}, labels={"disk": "ssd"}, priority=4),
            row(
                "works",
                4,
                account="ops",
                phase="leased",
                created_at=1.7e9,
                leased_at=1.7e9 + 60,
                leases=(lease,),
                expected_runtime=5400.0,
                max_runtime=7200.0,
            ),
        )
    )
    console.publish(row("gone", 9, phase="released", finished_at=NOW, reason="done"))
    reasons: list[Reason] = [("never_fits", "asks 8 cpus; the largest has 4"), ("at_max_slots", "the pool is full")]
    console.view_cache.write_report({"at": 5.0}, Waits(["small", "gang"], [reasons[1], reasons[0]]))
    wait_for(lambda: "gone" in console.app.state.backend.feed.view.ended, "the end in the feed")
    return console


def test_active_reservations_come_before_ended_ones(mixed: Console) -> None:
    assert shown(mixed, "") == ["works", "new", "gang", "small", "gone"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("id", ["gang", "new", "small"]),
        ("-id", ["small", "new", "gang"]),
        ("asks", ["new", "small", "gang"]),
        # A row without a code comes first.
        ("why", ["new", "small", "gang"]),
        # Rows with the same value stay in the usual order.
        ("account", ["small", "new", "gang"]),
        ("-priority", ["new", "small", "gang"]),
        ("-time", ["small", "gang", "new"]),
    ],
)
def test_a_list_is_sorted_by_any_column(mixed: Console, sort: str, expected: list[str]) -> None:
    found = shown(mixed, f"phase=pending&sort={sort}")
    assert found == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("text=LINUX-7", ["works"]),
        ("text=team%3Dml", ["new"]),
        # Each word counts, in the names, the code and the sentence.
        ("text=never+largest+qa", ["gang"]),
        ("text=disk%3Dssd", ["new"]),
        ("why=at_max_slots", ["small"]),
        ("text=nothing", []),
    ],
)
def test_a_search_finds_words_in_names_and_reasons(mixed: Console, query: str, expected: list[str]) -> None:
    assert shown(mixed, query) == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("why", "leased 1 never_fits 1 released 1 at_max_slots 1 none 1"),
        ("account", "ci 2 none 1 ops 1 qa 1"),
        ("tag:team", "none 3 ml 1 web 1"),
    ],
)
def test_a_list_is_grouped_with_counts(mixed: Console, group: str, expected: str) -> None:
    text = mixed.entered().get(f"/reservations?group={group}").text
    heads = re.findall(r'scope="rowgroup"[^>]*>(.*?)</th>', text)
    assert sorted(plain(each) for each in heads) == sorted(re.findall(r"\S+ \d+", expected))
    assert "5 in" in plain(text)


def test_a_row_has_the_request_the_time_and_the_code_with_its_sentence(mixed: Console) -> None:
    text = mixed.entered().get("/reservations").text
    assert "3 × worker 8 cpus" in text
    assert ">1.5 cpus<" in text
    assert "a slot · disk=ssd" in text
    assert re.search(r'title="asks 8 cpus; the largest has 4">never_fits</a>', text)
    assert re.search(r">waits \d+ s", text)
    assert re.search(r">runs \d+ d", text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("account=C", ["ci"]),
        ("account=", ["ci", "ops", "qa"]),
        ("tag=team", ["team=ml", "team=web"]),
        ("label=d", ["disk=ssd"]),
        ("why=s", ["at_max_slots", "never_fits"]),
    ],
)
def test_a_filter_completes_names(mixed: Console, query: str, expected: list[str]) -> None:
    assert re.findall(r'value="([^"]*)"', mixed.entered().get(f"/reservation-names?{query}").text) == expected


def test_an_empty_list_teaches_the_first_command(make_console: MakeConsole) -> None:
    browser = make_console().entered()
    assert "leasehold reserve --system x86_64-linux --cpus 2 --wait 60" in browser.get("/reservations").text
    assert "leasehold reserve" not in browser.get("/reservations?id=x").text


def test_a_reservation_has_a_page_without_a_worker(console: Console) -> None:
    answer = console.entered().get("/reservations/build-1")
    assert answer.status == 200
    assert "No events are stored" in answer.text


def offered(browser: Browser, name: str) -> list[str]:
    """Return the changes that the page of a reservation offers."""
    text = browser.get(f"/reservations/{name}").text
    return re.findall(r"/do/(\w+)\"[^>]*>(?:<label[^>]*>[^<]*</label><input[^>]*>)?<button(?: class=\"\w*\")?>", text)


def test_a_change_that_the_worker_would_refuse_is_not_offered(console: Console) -> None:
    """The token of an open cluster does not sign, so a worker takes its requests for those of a holder."""
    console.publish(row("keyed", 500, key_hash="0" * 64), row("mine", 501, principal="ci"))
    for name, role in (("ops", "operator"), ("ci", "producer"), ("other", "producer")):
        console.add(StoredPrincipal(name=name, role=role, key=KEY, created_at=0.0))  # type: ignore[arg-type]
    every = ["cancel", "suspend", "resume", "priority"]
    token, ops, ci, other = (
        console.entered(),
        *(console.browser(Authorization=basic(name, KEY)) for name in ("ops", "ci", "other")),
    )
    assert offered(token, "keyed") == ["cancel", "priority"]
    assert "has a key" in token.get("/reservations/keyed").text
    assert offered(ops, "keyed") == offered(token, "mine") == offered(ci, "mine") == offered(ops, "mine") == every
    assert offered(other, "mine") == []
    assert "its own reservations only" in other.get("/reservations/mine").text


def test_a_smallest_change_of_a_reservation_of_another_principal_is_not_offered(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.publish(row("mine", 500, principal="ci"), row("theirs", 501, principal="ada"))
    for name, role in (("ops", "operator"), ("ci", "producer"), ("ada", "producer")):
        console.add(StoredPrincipal(name=name, role=role, key=KEY, created_at=0.0))  # type: ignore[arg-type]
    change = SmallestChange(kind="row", text="end the reservation theirs", actions=({"release": "theirs"},))

    async def suggest(_: LoopClient, name: str, **__: object) -> Explanation:
        return Explanation(reservation=name, phase="pending", code="no_capacity", change=change)

    monkeypatch.setattr(LoopClient, "suggest", suggest)
    for name, is_offered in (("ops", True), ("ada", True), ("ci", False)):
        text = console.browser(Authorization=basic(name, KEY)).get("/reservation-explanations/mine").text
        assert "/smallest-change" in text
        assert ("may change its own reservations only" not in text) is is_offered


def test_an_undo_needs_the_rights_of_its_change_and_the_rules_that_the_change_wrote(console: Console) -> None:
    with console.store.transaction() as transaction:
        for most in (1, 2, 3):
            before = transaction.load_rules()
            transaction.save_rules({"pools": {"lab": {"system": "linux", "max_slots": most}}}, before.version)
    path, rules = "/reservations/build-1/undo", {"undo": '{"wrote": 2}'}

    def undo(role: str, fields: dict[str, str]) -> tuple[int, str]:
        console.add(StoredPrincipal(name=role, role=role, key=KEY, created_at=0.0))  # type: ignore[arg-type]
        browser = console.browser(Authorization=basic(role, KEY))
        answer = browser.post(path, fields, X_CSRF_Token=browser.csrf())
        return answer.status, plain(answer.text)

    assert undo("reader", rules)[0] == 403
    assert "this needs the role operator" in undo("producer", rules)[1]
    assert "the rules were changed since; version 3 is in force" in undo("operator", rules)[1]
    for broken in ("", "{}", '{"actions": [{"slot": {"id": "x"}}]}', '{"actions": [{"priority": 1}]}', "[1]"):
        assert undo("operator", {"undo": broken})[0] == 400
    # No rules were in force before version 1.
    assert undo("operator", {"undo": '{"wrote": 1}'})[0] == 400
    assert console.entered().post(path, rules).status == 403
    assert console.store.load_rules().version == 3


def test_a_hostile_id_stays_text(console: Console) -> None:
    console.publish(row("<script>alert(1)</script>\x1b[31m", 900))
    text = console.entered().get("/reservations").text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_preview_names_what_is_changed_and_what_is_left(console: Console) -> None:
    browser = console.entered()
    fields = {"verb": "priority", "priority": "7", "id": ["build-1", "gone"]}
    answer = browser.post("/reservations/bulk/preview", fields, X_CSRF_Token=browser.csrf())
    assert "Set the priority to 7: 1 reservation" in answer.text
    assert "the view does not have it" in answer.text


def test_a_preview_leaves_out_what_another_principal_has_submitted(console: Console) -> None:
    console.publish(row("mine", 501, principal="ci"), row("theirs", 502, principal="ada"))
    for name, role in (("ops", "operator"), ("ci", "producer")):
        console.add(StoredPrincipal(name=name, role=role, key=KEY, created_at=0.0))  # type: ignore[arg-type]
    fields = {"verb": "cancel", "id": ["mine", "theirs"]}
    for name, count in (("ops", "2 reservations"), ("ci", "1 reservation")):
        answer = console.browser(Authorization=basic(name, KEY)).post("/reservations/bulk/preview", fields)
        assert f"Cancel: {count}<" in answer.text
        assert ("<code>theirs</code> (another principal has submitted it)" in answer.text) is (name == "ci")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"verb": "cancel"}, "no reservation is selected"),
        ({"verb": "explode", "id": "build-1"}, "verb: expected cancel or priority"),
        ({"verb": "priority", "priority": "-1", "id": "build-1"}, "priority: expected a number that is not negative"),
        ({"verb": "priority", "priority": "nan", "id": "build-1"}, "priority: expected a number"),
    ],
)
def test_a_wrong_bulk_change_changes_nothing(console: Console, fields: dict[str, str], fault: str) -> None:
    browser = console.entered()
    for path in ("/reservations/bulk/preview", "/reservations/bulk"):
        assert fault in browser.post(path, fields, X_CSRF_Token=browser.csrf()).text


@pytest.mark.parametrize("path", ["/events", "/accounts", "/queues", "/events?slot=x&name=y"])
def test_the_other_pages_are_shown_for_an_empty_cluster(console: Console, path: str) -> None:
    answer = console.entered().get(path)
    assert answer.status == 200, answer.text
    assert "<h1>" in answer.text


def test_rules_are_compared_as_lines_of_toml_and_what_is_removed_is_one_line() -> None:
    present = {
        "ticks": {"interval": 5},
        "pools": {"lab": {"max_slots": 1, "ec2": {"image": "a"}, "labels": {"a": "b"}}, "big": {"max_slots": 9}},
    }
    proposed = {"ticks": {"interval": 5}, "pools": {"big": {"max_slots": 8, "min_slots": 2}}, "budgets": {"all": {}}}
    assert [(each.kind, each.text) for each in compare_rules(present, proposed)] == [
        ("removed", "[pools.lab] is removed, with 3 keys"),
        ("same", "[pools.big]"),
        ("removed", "max_slots = 9"),
        ("added", "max_slots = 8"),
        ("added", "min_slots = 2"),
        ("added", "[budgets.all]"),
    ]
    assert compare_rules(present, present) == []
    assert [each.text for each in compare_rules({"a": 1, "b": {"c": 2}}, {"a": 3})] == [
        "a = 1",
        "a = 3",
        "[b] is removed, with 1 key",
    ]


def an_event(name: str, at: float, **fields: Any) -> Event:
    return Event(**{"at": NOW + at, "name": f"reservation_{name}", "cause": "tick", "reservation": "r", **fields})


@pytest.mark.parametrize(
    ("fields", "wait", "expected"),
    [
        ({}, ("never_fits", "asks 64 cpus; the largest has 8"), "waits 28 min: asks 64 cpus; the largest has 8"),
        ({}, None, "waits 28 min: no tick has looked at it yet"),
        ({"phase": "leased", "leased_at": NOW + 1200, "leases": (a_lease("linux-7"),)}, None, "runs 8 min on linux-7"),
        (
            {"phase": "failed", "leased_at": NOW, "finished_at": NOW + 5, "reason": "exit status 1"},
            None,
            "failed, ran 5 s: exit status 1",
        ),
    ],
)
def test_the_headline_of_a_reservation_is_the_answer(
    fields: dict[str, object], wait: tuple[str, str] | None, expected: str
) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(row("r", 1, **fields)), type=ShownReservation)
    assert describe_state(shown, wait, NOW + 1680) == expected


def test_the_life_of_a_reservation_has_its_parts() -> None:
    """It was queued, its machine booted, it ran, was interrupted, and waits again for a machine that boots."""
    ran = msgspec.structs.replace(row("r", 1), phase="leased", leased_at=NOW + 40)
    events = [an_event("submitted", 0), an_event("leased", 40), an_event("cores", 50)]

    def draw(launched: float | None, *more: Event, is_booting: bool = False) -> list[tuple[str, float]]:
        parts = draw_life(ran, [*events, *more], launched, NOW + 100, is_booting=is_booting)  # type: ignore[arg-type]
        assert sum(each.share for each in parts) == pytest.approx(1000)
        return [(each.name, each.seconds) for each in parts]

    assert draw(None) == [("queued", 40), ("leased", 60)]
    assert draw(NOW + 10) == [("queued", 10), ("booting", 30), ("leased", 60)]
    back = an_event("pending", 70)
    assert draw(None, back) == [("queued", 40), ("leased", 30), ("queued", 30)]
    assert draw(NOW + 80, back, is_booting=True)[-2:] == [("queued", 10), ("booting", 20)]


def test_the_page_of_a_reservation_has_its_request_its_life_and_its_events_in_words(mixed: Console) -> None:
    with mixed.store.transaction() as transaction:
        detail = {"from": "pending", "waited": 75.5, "slots": ["linux-7"], "tick": 3, "term": 1}
        cores = {"component": "main", "cpus": 3.5, "slot": "linux-7"}
        transaction.append_events(
            [
                an_event("leased", 1.7e9 + 60 - NOW, reservation="works", detail=detail),
                an_event("cores", 1, reservation="works", detail=cores),
            ]
        )
    browser = mixed.entered()
    text = browser.get("/reservations/works").text
    assert "runs" in plain(text[text.index('id="headline"') :])[:80]
    assert 'role="img" aria-label="queued 1 min, leased ' in text
    assert "Asks for a slot" in plain(text)
    assert "Run time 1 h 30 min expected, 2 h 0 min at most" in plain(text)
    assert "after 1 min, on linux-7" in text
    assert "1 change of cores" in plain(text)
    # The page Events shows changes of cores only if its address asks for them.
    assert "3.5 cores" not in browser.get("/events").text
    assert "reservation leased" in plain(browser.get("/events").text)
    for query in ("cores=1", "name=reservation_cores"):
        assert "may use 3.5 cores of linux-7" in browser.get(f"/events?{query}").text
    assert "3.5 cores" not in browser.get("/events/new?after=0").text
    assert "3.5 cores" in browser.get("/events/new?after=0&cores=1").text


def test_changes_of_cores_hide_no_other_events(mixed: Console) -> None:
    with mixed.store.transaction() as transaction:
        detail = {"from": "pending", "waited": 75.5, "slots": ["linux-7"], "tick": 3, "term": 1}
        leased = an_event("leased", 1.7e9 + 60 - NOW, reservation="works", detail=detail)
        cores = {"component": "main", "cpus": 3.5, "slot": "linux-7"}
        transaction.append_events(
            [leased, *(an_event("cores", 1, reservation="works", detail=cores) for _ in range(600))]
        )
    browser = mixed.entered()
    text = browser.get("/reservations/works").text
    assert "after 1 min, on linux-7" in text
    assert "500 changes of cores" in plain(text)
    for path in ("/events", "/events?reservation=works", "/events/new?after=0"):
        assert "after 1 min, on linux-7" in browser.get(path).text


def test_the_cause_of_an_event_is_in_the_words_of_the_command_line(make_console: MakeConsole) -> None:
    console = make_console(rows=(a_slot("linux-1"), a_reservation("r1")))
    with console.store.transaction() as transaction:
        transaction.append_events(
            [
                an_event("submitted", 0, reservation="r1", cause="holder", principal="ci"),
                an_event("pending", 1, reservation="r1", detail={"tick": 4, "term": 1}),
                Event(at=NOW, name="slot_cordoned", cause="holder", slot="linux-1"),
            ]
        )
    browser = console.entered()
    for path, badges in (
        ("/reservations/r1", ["request ci", "tick 1.4"]),
        ("/fleet/slot/linux-1", ["request"]),
        ("/events", ["request", "tick 1.4", "request ci"]),
        ("/events/new?after=0", ["request", "tick 1.4", "request ci"]),
    ):
        text = browser.get(path).text
        assert "holder</span>" not in text
        assert re.findall(r'class="badge">((?:request|tick)[^<]*)<', text) == badges


def test_a_preemption_is_one_line(console: Console) -> None:
    paid = {"account": "ci", "level": 1, "cost": [0, 2.5], "slot": "linux-1"}
    with console.store.transaction() as transaction:
        transaction.append_events(
            [
                an_event("pending", 0, reservation="victim", detail={"by": "winner", "ran_at": 5, **paid}),
                an_event("leased", 0, reservation="winner", detail={"preempted": ["victim"], **paid}),
            ]
        )
    text = console.entered().get("/accounts").text
    assert len(re.findall("preempted by winner of account ci", text)) == 1
    assert "preempted victim" not in text


@pytest.mark.parametrize(
    ("error", "is_known"),
    [
        (Refused([Fault(0, "slot", "a slot", "linux-1", "unknown")]), True),
        (Overloaded("the workers are overloaded"), True),
        (NotAnswered("no answer"), False),  # the request may wait in the queue
        (Unavailable("Redis does not answer"), False),  # the connection was lost after the request was sent
    ],
)
def test_a_change_that_may_still_be_carried_out_is_not_reported_as_none(
    make_console: MakeConsole, monkeypatch: pytest.MonkeyPatch, error: LeaseholdError, *, is_known: bool
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(LoopClient, "drain", fail)
    monkeypatch.setattr(LoopClient, "cancel", fail)
    browser = make_console(rows=(a_slot("linux-1"), a_reservation("r1"))).entered()
    for path in ("/fleet/slot/linux-1/drain", "/reservations/r1/do/cancel"):
        text = browser.post(path, X_CSRF_Token=browser.csrf()).text.lower()
        assert ("it is not known whether" in text) is not is_known, path
    drained = browser.post("/fleet/slot/linux-1/drain", X_CSRF_Token=browser.csrf()).text
    assert ("Nothing was changed" in drained) is is_known
    with capture_logs() as lines:
        fields = {"verb": "cancel", "id": ["r1", "r2"]}
        text = browser.post("/reservations/bulk", fields, X_CSRF_Token=browser.csrf()).text
    word = "refused" if is_known else "not known"
    assert f"0 of 2 done; 2 {word}<" in text
    assert text.count(f">{word}</span>") == 2
    assert [each["outcome"] for each in lines] == 2 * [f"{word}: {error}"]


@pytest.mark.parametrize("name", ["build/command", "docs/explanation", "bulk", "bulk/preview"])
def test_each_reservation_has_a_page_whatever_its_id(make_console: MakeConsole, name: str) -> None:
    answer = make_console(rows=(a_reservation(name),)).entered().get(f"/reservations/{name}")
    assert (answer.status, f"<h1>{name}" in answer.text or f">{name}</h1>" in answer.text) == (200, True)
