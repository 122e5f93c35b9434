"""docs/reference/protocol.md describes what the code does: verbs, fields, answers, notices, addresses."""

import re
from pathlib import Path
from typing import get_args

import pytest

from scheduler.model.command_schemas import RESERVED_QUEUES, SCHEMAS, HolderDocument
from scheduler.model.events import Event
from scheduler.model.transitions import ENDED
from scheduler.operations.change_set import describe_notice
from scheduler.operations.commands.intake import MOST_ITEMS, TRUSTED
from scheduler.operations.commands.submit import describe_answer
from scheduler.ports import check_reply_address
from scheduler.protocol.names import QUEUE_NAMES, RESERVATIONS, task_name
from scheduler.protocol.signing import VERSION, SignedFields, encode_canonically, hash_body, read_key, sign
from scheduler.protocol.task_messages import MOST_LEVELS
from scheduler.protocol.verbs import KEY_VERBS, OPERATOR_VERBS, QUESTIONS, VERBS, Role
from tasks.messages import MOST_BYTES, check_message
from tests.builders import a_lease, a_reservation, a_slot
from tests.operations.harness import Harness
from tests.system.bad_messages import an_envelope

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "protocol.md").read_text()
ROWS = {
    verb: [cell.strip() for cell in cells.split("|")]
    for names, cells in re.findall(
        r"^\| ((?:`[a-z_]+`(?:, )?)+) \| (.*) \|$", PAGE.split("## Answers")[0], re.MULTILINE
    )
    for verb in re.findall(r"`([a-z_]+)`", names)
}


def test_every_verb_is_described_with_its_fields() -> None:
    assert set(SCHEMAS) | QUESTIONS | {"apply"} <= set(ROWS)
    for verb, model in SCHEMAS.items():
        if verb == "submit":
            continue
        named = set(re.findall(r"`([a-z_]+)`", ROWS[verb][0]))
        # Token and key are described once and not for each request that needs none.
        assert set(model.model_fields) - {"token", "key"} == named - {"token", "key"}, verb


def list_named(page: str, start: str, column: int = 1) -> set[str]:
    """Return what stands in backticks in a column of the rows that begin with `start`."""
    cells = [line.split("|")[1 + column] for line in page.splitlines() if line.startswith(start)]
    return {name for cell in cells for name in re.findall(r"`\.?([a-z_]+)`", cell)}


def list_verbs(**more: object) -> set[str]:
    return {name for name, verb in VERBS.items() if all(getattr(verb, key) == value for key, value in more.items())}


def test_the_pages_name_the_verbs_of_each_role_route_and_rank() -> None:
    by_role = {role: {name for name, verb in VERBS.items() if role in verb.roles} for role in get_args(Role)}
    assert list_named(PAGE, "| `host` |") == by_role["host"]
    assert list_named(PAGE, "| `producer`, `reader` |") == by_role["reader"]
    assert list_named(PAGE, "| `producer`") == by_role["producer"]
    http = (REFERENCE / "http.md").read_text()
    for kind in ("reservation", "slot"):
        assert list_verbs(where=kind) <= list_named(http, f"| `POST /{kind}s/{{{kind}}}/{{verb}}`")
    processes = (REFERENCE / "processes.md").read_text()
    assert VERBS.keys() - {"submit"} == list_named(processes, "| `reservations` |")
    of_operators = list_verbs(put_off="last") & OPERATOR_VERBS
    ranks = {"first": "| `longest_wait` |", "later": "| 5 × `longest_wait` |", "last": "| 15 × `longest_wait` |"}
    for rank, start in ranks.items():
        assert list_verbs(put_off=rank) - of_operators == list_named(processes, start), rank


def test_the_requests_that_need_a_key_name_it() -> None:
    assert {verb for verb, cells in ROWS.items() if "`key`" in cells[0]} == KEY_VERBS


@pytest.mark.parametrize("verb", sorted(name for name, word in SCHEMAS.items() if issubclass(word, HolderDocument)))
def test_the_requests_that_need_a_token_are_those_of_the_table(verb: str) -> None:
    rig = Harness().leased()
    more = {"priority": 1} if verb == "priority" else {}
    answer = rig.ask(verb, reservation="r1", **more)
    needs = any(error["path"] == "token" for error in answer.get("errors", ()))
    # A leased reservation is not resumed, so its token is not needed.
    assert needs is (ROWS[verb][1] == "yes") or verb == "resume"


def test_answers_are_as_shown() -> None:
    shown = set(re.findall(r'"([a-z_]+)":', PAGE.split('{"ok": true, ')[1].split("}")[0])) | {"ok"}
    assert set(describe_answer(a_reservation())) == shown
    assert set(describe_answer(a_slot())) == {"ok", "slot", "state", "cordoned"}
    assert {"renew", "confirm"} == TRUSTED


def test_notices_are_as_shown() -> None:
    row = a_reservation(phase="leased", leases=(a_lease("linux-1"),))
    notice = describe_notice(Event(at=0, name="reservation_leased", cause="tick"), row, {"linux-1": a_slot("linux-1")})
    example = PAGE.split("## Notices")[1].split("```")[1]
    shown = set(re.findall(r'"([a-z_]+)":', example))
    assert set(notice) | set(notice["leases"][0]) | {"cpus"} == shown
    for event in ENDED | {"leased", "revoking", "pending"}:
        assert f"`{event}`" in PAGE.split("## Notices")[1]


def test_the_envelope_and_the_limits_are_as_described() -> None:
    task = task_name(RESERVATIONS, "submit")
    envelope = an_envelope(RESERVATIONS, task, [[{}], {}, None], "an-id")
    shown = set(re.findall(r'"([a-z_-]+)":', PAGE.split("```json")[1].split("```")[0]))
    bare = {
        "body": envelope["body"],
        "content-type": envelope["content-type"],
        "content-encoding": envelope["content-encoding"],
        "headers": {"task": task, "id": "an-id"},
        "properties": {key: envelope["properties"][key] for key in ("body_encoding", "delivery_tag", "delivery_info")},
    }
    check_message(RESERVATIONS, bare, {task})
    found = set(bare) | set(bare["headers"]) | set(bare["properties"]) | set(bare["properties"]["delivery_info"])
    assert found == shown
    assert f"{MOST_BYTES // 1024**2} MiB" in PAGE
    assert f"more than {MOST_LEVELS} levels" in PAGE
    assert f"1 to {MOST_ITEMS:,} documents" in PAGE
    check_reply_address("leasehold:reply:" + "a" * 100, "leasehold:")


def test_no_queue_of_the_stack_is_a_producers() -> None:
    assert set(QUEUE_NAMES) < RESERVED_QUEUES


def test_the_example_of_a_signature_is_right() -> None:
    part = PAGE.split("## Signatures")[1].split("## The verbs")[0]
    key = re.findall(r"with the key `([\w-]+)`", part)[0]
    body, example = re.findall(r"```\n(.*?)\n```", part, re.DOTALL)
    canonical, signature = example.split("\n")
    texts, rest = [], canonical
    while rest:
        length, _, rest = rest.partition(":")
        texts.append(rest[: int(length)])
        assert rest[int(length)] == ","
        rest = rest[int(length) + 1 :]
    fields = SignedFields(*texts[1:])
    assert texts[0] == VERSION
    assert encode_canonically(*texts).decode() == canonical
    assert fields.body_sha256 == hash_body(body.encode())
    assert sign(read_key(key), fields) == signature
    assert set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) == {"principal", "cluster", "signed_at", "signature"}
