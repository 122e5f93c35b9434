"""Results in a shell and in a notebook: one line for a result, a table for a list, and all text escaped."""

import asyncio
from html.parser import HTMLParser
from typing import Any

import pytest

from leasehold import AsyncClient, Client
from leasehold.client.display import Table, draw_table
from leasehold.client.lease_changes import Change
from leasehold.client.models import Account, Answer, Conditions, Explanation, Placement, Reservation, Slot, Wait
from leasehold.errors import Fault
from scheduler.model.accounts import Account as StoredAccount
from tests.builders import a_slot
from tests.client.intake import FakeIntake, a_row
from tests.client.test_lease import WAIT, FakeReservation
from tests.client.test_reading import a_leased_row

PLACEMENT = Placement(component="main", slot="linux-1", token=12, address="10.0.0.1")


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (Reservation(id="r1", phase="pending"), "<Reservation r1 pending>"),
        (
            Reservation(id="r1", phase="leased", token=12, leases=(PLACEMENT,)),
            "<Reservation r1 leased on linux-1, token 12>",
        ),
        (Reservation(id="r1", phase="failed", reason="slot_gone"), "<Reservation r1 failed (slot_gone)>"),
        (PLACEMENT, "<Placement main held on linux-1 (10.0.0.1) token 12>"),
        (
            Slot(id="linux-1", pool="linux", state="ready", instance_type="m7g.large", instance_id="i-1"),
            "<Slot linux-1 ready m7g.large i-1>",
        ),
        (Slot(id="linux-2", pool="linux", state="empty", cordoned=True), "<Slot linux-2 empty cordoned>"),
        (Account(id="ci", balance=(0.0, 2.5, 0.0, 0.0, 0.0)), "<Account ci level 1, balance 0 2.5 0 0 0>"),
        (Answer(ok=True, reservation="r1", phase="leased", token=12), "<Answer ok r1 leased token 12>"),
        (Answer(ok=False, errors=(Fault(0, "id", "a name", "7"),)), "<Answer refused: id: expected a name, got 7>"),
        (
            Explanation(reservation="r1", phase="pending", code="booting", detail="soon", position=1, waiting=3),
            "<Explanation r1 is pending, 1 of 3 in the queue: booting: soon>",
        ),
        (Wait(code="booting", detail="soon"), "<Wait booting: soon>"),
        (Conditions(as_of=5.0, pools={"linux": ("held",)}), "<Conditions as_of=5.0 pools={'linux': ('held',)}>"),
        (Change(kind="granted", placement=PLACEMENT), "<Change main on linux-1 granted>"),
        # Control characters are escaped and long texts are cut, so that a result stays one readable line.
        (Reservation(id="r1", phase="failed", reason="a\n\tb\x1b[31m"), r"<Reservation r1 failed (a b\x1b[31m)>"),
        (Wait(code="x", detail="y" * 500), f"<Wait x: {'y' * 156}…>"),
    ],
)
def test_a_result_is_one_line(result: object, line: str) -> None:
    assert repr(result) == line


class Cells(HTMLParser):
    """The rows of an HTML table, and each tag that does not belong to a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.other_tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
        elif tag != "table":
            self.other_tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def read_table(html: str) -> list[list[str]]:
    parser = Cells()
    parser.feed(html)
    assert parser.other_tags == []
    return parser.rows


def test_lists_of_results_are_tuples_and_tables(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_slot("linux-1", version=1), a_row("r1", sequence=1), a_leased_row("r2", sequence=2))
    intake.publish(StoredAccount(id="ci", version=1))
    rows, slots, accounts = client.list(), client.slots(), client.accounts()
    assert isinstance(rows, tuple)
    assert rows == tuple(rows)
    header, first, second = read_table(rows._repr_html_())
    assert header[:2] == ["id", "phase"]
    assert (first[:2], second[:2]) == (["r1", "pending"], ["r2", "leased"])
    assert second[header.index("slots")] == "linux-1"
    assert read_table(slots._repr_html_())[1][0] == "linux-1"
    assert read_table(accounts._repr_html_())[1][0] == "ci"
    assert client.list("ended")._repr_html_() == "<p>none</p>"


def test_every_text_of_a_table_is_escaped() -> None:
    evil = "<script>alert('&')</script>"
    rows = Table([Reservation(id=evil, phase="failed", reason=evil), Reservation(id="r2", phase="pending")])
    header, first, second = read_table(rows._repr_html_())
    assert header[:3] == ["id", "phase", "reason"]
    assert (first[:3], second[:3]) == ([evil, "failed", evil], ["r2", "pending", ""])
    assert read_table(draw_table([{evil: {evil: (evil,)}}])) == [[evil], [f"{evil}={evil}"]]
    assert read_table(rows[0]._repr_html_())[1][0] == evil


def test_times_of_a_table_name_their_zone() -> None:
    (header, row) = read_table(Reservation(id="r1", phase="pending", created_at=1_800_000_000.0)._repr_html_())
    assert row[header.index("created_at")] == "2027-01-15 08:00:00Z"


def test_a_lease_shows_its_state_and_its_slot(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake, ttl=None)
    lease = client.lease(id="r1", system="s", wait=WAIT)
    kind = repr(lease).partition(" ")[0]
    assert repr(lease) == f"{kind} r1 not entered>"
    with lease:
        assert repr(lease) == f"{kind} r1 held on linux-1, token 1>"
        assert "<td>linux-1</td>" in lease._repr_html_()
        holder.publish("r1", phase="revoking", revoke_by=9e9, revoke_reason="<preempted>")
        assert lease.revoking.wait(WAIT)
        assert repr(lease).startswith(f"{kind} r1 revoking (<preempted>) on linux-1, token 1, ")
        assert "<preempted>" not in lease._repr_html_()
    assert repr(lease).startswith(f"{kind} r1 left on linux-1")


def test_a_client_shows_its_address_without_the_password() -> None:
    async def show() -> str:
        async with AsyncClient("redis://user:hush@127.0.0.1:1/0") as client:
            return repr(client)

    with Client("redis://user:hush@127.0.0.1:1/0") as client:
        assert repr(client) == "<Client redis://127.0.0.1:1/0>"
    assert asyncio.run(show()) == "<AsyncClient redis://127.0.0.1:1/0>"
