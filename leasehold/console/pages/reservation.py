"""The page of one reservation: its history as a timeline, its leases, why it waits, what would end the wait, and its
command with the end of the output.
"""

import hashlib
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.client.async_client import AsyncClient
from leasehold.client.core.commands import AccountFields
from leasehold.client.models import Command, Execution, Explanation, Reservation
from leasehold.client.redis.reader import join_machines
from leasehold.client.rules import RulesApplied
from leasehold.console.page import (
    CORES,
    Outcome,
    Page,
    backend,
    caller,
    change,
    format_span,
    is_foreign,
    make_rows,
    read_form,
    read_waits,
    render,
)
from leasehold.console.pages.reservations import read_number
from leasehold.console.reservation_list import describe_resources, describe_wish, find_span
from leasehold.errors import NotAnswered, Refused, Unavailable
from leasehold.texts.change_commands import describe_loss, format_commands, list_undo_commands
from leasehold.web.caller import Caller, needs
from scheduler.model.events import Event
from scheduler.model.reservations import Reservation as StoredReservation
from scheduler.model.rules import merge_rules
from scheduler.model.runs import RunState, describe_run, name_end
from scheduler.model.transitions import ENDED
from scheduler.operations.rules.history import describe_history
from scheduler.ports import EventFilter
from scheduler.protocol.forecasts import describe_eta
from scheduler.protocol.verbs import KEY_VERBS

MOST_RUNS: Final = 20
MOST_OUTPUTS: Final = 4
"""The most outputs that the page shows. Each may have 8 KiB."""


@dataclass(frozen=True)
class CommandCard:
    """The command of a reservation as the page shows it. `line`: its arguments as a line for a shell. `facts`: names
    and texts of its other fields. `runs`: the newest runs first; `older`: how many more there are. `outputs`: the last
    run of each component that has output, failed ones first; `quiet`: how many more there are. `tag` changes when any
    of this does.
    """

    line: str
    facts: dict[str, str]
    runs: tuple[Execution, ...]
    older: int
    outputs: tuple[Execution, ...]
    quiet: int
    tag: str


def make_card(found: Command, run: RunState) -> CommandCard:
    """Return the command as the page shows it. `run`: the state of the command in the row, which may be older."""
    runs = found.executions[::-1]
    # The runs are in their order, so the last one of a component replaces the ones before.
    outputs = [each for each in {each.component: each for each in found.executions}.values() if each.tail]
    outputs.sort(key=lambda each: not has_failed(each))
    return CommandCard(
        line=shlex.join(map(str, found.run.get("argv", ()))),
        facts=_list_facts(found.run),
        runs=runs[:MOST_RUNS],
        older=max(0, len(runs) - MOST_RUNS),
        outputs=tuple(outputs[:MOST_OUTPUTS]),
        quiet=max(0, len(outputs) - MOST_OUTPUTS),
        tag=hashlib.blake2s(msgspec.json.encode((found, run)), digest_size=8).hexdigest(),
    )


def has_failed(run: Execution) -> bool:
    """Return whether a run has ended otherwise than with the exit code 0."""
    return run.state == "ended" and (run.why, run.exit_code) != ("exited", 0)


def _list_facts(run: dict[str, Any]) -> dict[str, str]:
    facts = {
        "Image": run.get("image"),
        "Working directory": run.get("cwd"),
        "User": run.get("user"),
        "Released by": "any exit code" if run.get("on_exit") == "release" else None,
        "Environment (values are hidden)": ", ".join(run.get("env") or ()),
    }
    return {name: str(value) for name, value in facts.items() if value}


def describe_command_state(run: RunState) -> str:
    """Return the state of a command as a sentence."""
    if run.state == "waiting":
        return "No host has started it."
    if run.state == "running":
        return "It runs."
    text = describe_run(run) or "it has ended, and no host has reported how"
    return f"{text[0].upper()}{text[1:]}."


MOST_SLOTS: Final = 3
"""The most slots that the headline names."""
SEARCH_SECONDS: Final = 10.0
"""Seconds to wait for the explanation of a worker."""
VERBS: Final = ("cancel", "priority", "suspend", "resume", "rerun")
COMMAND_SECONDS: Final = 10.0
"""Seconds to wait for a worker to read the command of a reservation."""
HIDDEN_COMMAND: Final = (
    "Only the principal that submitted the reservation and principals with the role operator see the command and its"
    " output."
)


async def show_reservation(request: Request) -> Response:
    """Show one reservation: its fields, its leases and its history. If the request has the header `HX-Target: course`,
    show only the part of the page that changes with time, and after the end of the reservation what can be done then.
    """
    name, revision = request.path_params["name"], backend(request).feed.revision
    row = await _find(request, name)
    events, lost = await _read_events(request, name)
    is_part = request.headers.get("hx-target") == "course"
    sender, now = caller(request), (await backend(request).client(caller(request))).now()
    wait = (await read_waits(request)).get(name) if row.phase == "pending" else None
    rows = make_rows(events)
    feed = backend(request).feed
    with feed.lock:
        slots = [feed.view.slots.get(lease.slot) for lease in row.leases]
    stored = await _find_stored(request, name)
    return render(
        request,
        "reservation_course.html" if is_part else "reservation.html",
        page="reservations",
        is_part=is_part,
        revision=revision,
        row=row,
        document=msgspec.json.format(msgspec.json.encode(row.request), indent=2).decode(),
        headline=describe_state(row, wait, now),
        wish=describe_wish(row.request),
        describe_resources=describe_resources,
        life=draw_life(
            row,
            events,
            max((slot.launched_at for slot in slots if slot and slot.launched_at is not None), default=None),
            now,
            is_booting=wait is not None and wait[0] == "booting",
        ),
        events=[each for each in rows if each.event.name != CORES],
        cores=[each for each in rows if each.event.name == CORES],
        lost=lost,
        is_over=row.phase in ENDED,
        run_sentence=None if row.run is None else describe_command_state(row.run),
        refusals={verb: sender.find_refusal(verb) or _find_foreign(sender, verb, stored) for verb in VERBS},
    )


@dataclass(frozen=True)
class Part:
    """A part of the life of a reservation: `queued`, `booting` or `leased`, with its length in seconds. `begin` and
    `share` are thousandths of the whole life.
    """

    name: str
    seconds: float
    begin: float
    share: float


def describe_state(row: Reservation, wait: tuple[str, str] | None, now: float) -> str:
    """Return the state of a reservation as a sentence: how long it has waited and why, or where it runs, or how it
    ended. `wait`: the waiting code and the sentence of the last tick; None: no tick has reported one.
    """
    verb, seconds = find_span(row, now)
    text = f"{verb} {format_span(seconds)}"
    if row.phase == "pending":
        return f"{text}: {wait[1] or wait[0]}" if wait else f"{text}: no tick has looked at it yet"
    if row.phase in ENDED:
        return f"{row.phase}, {text}" + (f": {row.reason}" if row.reason else "")
    slots = [lease.slot for lease in row.leases]
    more = f" and {len(slots) - MOST_SLOTS} more" if len(slots) > MOST_SLOTS else ""
    return f"{text} on {', '.join(slots[:MOST_SLOTS])}{more}" if slots else text


def draw_life(
    row: Reservation, events: Sequence[Event], launched_at: float | None, now: float, *, is_booting: bool
) -> list[Part]:
    """Return the parts of the life of a reservation in their order, from its events. While it waited for its machine,
    it was booting: from the launch (`launched_at`; None: not known) to the lease, or now, if `is_booting`.
    """
    end = row.finished_at if row.phase in ENDED and row.finished_at else now
    moves = [(row.created_at, "queued")]
    for each in events:
        phase = each.name.removeprefix("reservation_")
        if phase in {"pending", "leased"}:
            moves.append((each.at, "leased" if phase == "leased" else "queued"))
    if row.leased_at and all(name == "queued" for _, name in moves):
        moves.append((row.leased_at, "leased"))
    found: list[tuple[str, float, float]] = []
    for (begin, name), (until, _) in zip(moves, [*moves[1:], (end, "")], strict=True):
        boot = launched_at if launched_at is not None and begin <= launched_at < until else None
        is_last = until == end
        if name == "queued" and boot is not None and (not is_last or is_booting):
            found += [("queued", begin, boot), ("booting", boot, until)]
        else:
            found.append((name, begin, until))
    whole = max(end - row.created_at, 1e-3)
    return [
        Part(name, until - begin, 1000 * (begin - row.created_at) / whole, 1000 * (until - begin) / whole)
        for name, begin, until in found
        if until > begin
    ]


async def _find_stored(request: Request, name: str) -> StoredReservation | None:
    feed = backend(request).feed
    await feed.refresh()
    with feed.lock:
        return feed.view.reservations.get(name)


def _find_foreign(sender: Caller, verb: str, stored: StoredReservation | None) -> str | None:
    # Only a signed request proves that it comes from an operator. An operator needs no key.
    if stored is None or (sender.role == "operator" and sender.principal is not None):
        return None
    if is_foreign(sender, stored.principal):
        return f"{sender.name} may change its own reservations only"
    if verb in KEY_VERBS and stored.key_hash is not None:
        return f"{stored.id} has a key: only its holder and principals with the role operator may {verb} it"
    return None


async def show_command(request: Request) -> Response:
    """Show the command of a reservation with its runs and the end of their output, as a worker reads it for the caller.
    A caller that may not see it gets the state of the command. If the address has `seen` (the tag of what a page shows)
    and nothing has changed since, the response has the status 204.
    """
    name, sender, services = request.path_params["name"], caller(request), backend(request)
    row = await _find(request, name)
    if row.run is None:
        raise HTTPException(404, f"The reservation {name[:200]} has no command.")
    card, note, is_hidden = None, "", not sender.may("command") or is_foreign(sender, row.principal)
    if is_hidden:
        note = HIDDEN_COMMAND
    else:
        client = await services.client(sender)
        try:
            found = await services.feed.unless_silent(client.command(name, timeout=COMMAND_SECONDS))
        except NotAnswered:
            note = "No worker answered, so only the state of the command is known."
        except (Refused, Unavailable) as error:
            note = str(error)
        else:
            card = await services.run_plain(make_card, found, row.run)
    if card is not None and card.tag == request.query_params.get("seen"):
        return Response(status_code=204)
    return render(
        request,
        "command.html",
        row=row,
        run_sentence=describe_command_state(row.run),
        card=card,
        note=note,
        # The output of a command grows without a change of the row.
        grows=row.run.state == "running" and not is_hidden,
        name_end=name_end,
        has_failed=has_failed,
    )


async def explain_wait(request: Request) -> Response:
    """Show why a reservation waits: the conditions that are met and not met, and the smallest change that would end the
    wait.
    """
    name = request.path_params["name"]
    client = await backend(request).client(caller(request))
    note = ""
    try:
        found = await backend(request).feed.unless_silent(client.suggest(name, timeout=SEARCH_SECONDS))
    except NotAnswered:
        note = "No worker answered: this is what the last tick reported, without the smallest change."
        found = await client.explain(name)
    except Refused as error:
        return render(request, "problem_part.html", title="This wait cannot be explained", detail=str(error))
    actions = [describe_action(each) for each in found.change.actions] if found.change else []
    sender = caller(request)
    refusals = []
    for each in found.change.actions if found.change else ():
        if (action := find_action(each)) is not None:
            stored = await _find_stored(request, action.about) if action.verb in VERBS else None
            refusals.append(sender.find_refusal(action.verb) or _find_foreign(sender, action.verb, stored))
    return render(
        request,
        "explanation.html",
        found=found,
        # The worker knows what does not fit; the tick's sentence, with which the page began, may be more general.
        headline=await _find_headline(request, found),
        eta="" if found.eta is None else _begin_sentence(describe_eta(found.eta, client.now())),
        note=note,
        actions=actions,
        commands=format_commands(found.change.actions) if found.change else [],
        can_press=bool(actions) and all(each.verb is not None for each in actions),
        refusal=next(filter(None, refusals), None),
        name=name,
    )


def _begin_sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


async def _find_headline(request: Request, found: Explanation) -> str:
    """Return the headline of the page with the sentence of an explanation; "" if the page keeps the one it has."""
    if found.phase != "pending" or not found.headline:
        return ""
    now = (await backend(request).client(caller(request))).now()
    return describe_state(await _find(request, found.reservation), (found.code or "", found.headline), now)


@needs("cancel")
async def press_change(request: Request) -> Response:
    """Make the smallest change that a page has shown. A worker first searches for the smallest change again, because
    the state may have changed since. If the worker finds another change or none, nothing is changed, and the page shows
    that.
    """
    name = request.path_params["name"]
    form = await read_form(request)
    client = await backend(request).client(caller(request))
    found = await client.suggest(name, timeout=SEARCH_SECONDS)
    if found.change is None or found.change.text != form.get("text", [""])[0]:
        text = "Nothing was changed: the state has changed since, and another change would be needed now."
        return render(request, "outcomes.html", outcomes=[Outcome(name, ok=False, text=text)], bulk=None)
    outcomes, wrote = await _carry_out_all(request, found.change.actions)
    commands: list[str] = []
    undo = None
    if all(each.ok for each in outcomes):
        # The change was refused unless it replaced the version that it had read, which is the one before.
        commands = list_undo_commands(found.change, max(0, wrote - 1))
        undo = msgspec.json.encode(Undo(found.change.undo, wrote)).decode() if commands else None
    values = {"outcomes": outcomes, "bulk": None, "undo": undo, "commands": commands, "name": name}
    return render(request, "pressed.html", loss=describe_loss(found.change.undo), **values)


@needs("cancel")
async def undo_change(request: Request) -> Response:
    """Reverse a change that `press_change` has made. The rules are restored only if they still are those that the
    change wrote; otherwise nothing is changed.
    """
    undo = read_undo((await read_form(request)).get("undo", [""])[0])
    if undo is None:
        raise HTTPException(400, "The form does not contain what is to be undone.")
    fault = None
    if undo.wrote:
        fault = caller(request).find_refusal("apply") or await _describe_newer_rules(request, undo.wrote)
    if fault is not None:
        outcomes = [Outcome("rules", ok=False, text=fault)]
    else:
        outcomes, _ = await _carry_out_all(request, undo.actions)
        if undo.wrote and all(each.ok for each in outcomes):
            [before] = await backend(request).run(backend(request).store.read_rules_history, version=undo.wrote - 1)
            outcome = await change(
                request,
                "apply",
                "rules",
                lambda client: client.apply_rules(
                    before.document, expected=undo.wrote, source="the undo of the smallest change, in the console"
                ),
            )
            outcomes.append(Outcome("rules", outcome.ok, f"as in version {before.version}: {outcome.text}"))
    return render(request, "outcomes.html", outcomes=outcomes, bulk=None)


async def _describe_newer_rules(request: Request, version: int) -> str | None:
    """Return a sentence about the rules that replaced this version of the rules; None if it is in force."""
    [newest] = await backend(request).run(describe_history, backend(request).store, 1)
    if newest["version"] == version:
        return None
    by = f", by {newest['source']}" if newest["source"] else ""
    return f"nothing was undone: the rules were changed since; version {newest['version']} is in force{by}"


async def _carry_out_all(request: Request, documents: Iterable[Mapping[str, Any]]) -> tuple[list[Outcome], int]:
    """Request these actions of a change in their order until one is refused. Return the outcomes, and the version of
    the rules that was written; 0: none was.
    """
    outcomes, wrote = [], 0
    for each in documents:
        action, text = find_action(each), describe_action(each).text
        if action is None:
            outcomes.append(Outcome("", ok=False, text=f"{text}: not possible from here"))
            break

        async def act(client: AsyncClient, action: Action = action) -> object:
            nonlocal wrote
            answer = await action.act(client)
            if isinstance(answer, RulesApplied) and answer.changed:
                wrote = answer.version
            return answer

        outcome = await change(request, action.verb, action.about, act)
        outcomes.append(Outcome(outcome.about, outcome.ok, f"{text}: {outcome.text}"))
        if not outcome.ok:
            break
    return outcomes, wrote


async def change_reservation(request: Request) -> Response:
    """Carry out one command about a reservation: cancel, suspend, resume, a new priority, or a run of its
    command again.
    """
    verb = request.path_params["verb"]
    if verb not in VERBS:
        raise HTTPException(404, f"There is no command {verb[:80]}.")
    return await needs(verb)(_carry_out)(request)


async def _carry_out(request: Request) -> Response:
    name, verb = request.path_params["name"], request.path_params["verb"]
    form = await read_form(request)

    async def act(client: AsyncClient) -> object:
        match verb:
            case "cancel":
                return await client.cancel(name, reason="cancelled in the console")
            case "suspend":
                return await client.suspend(name, (await _find(request, name)).token or None)
            case "resume":
                return await client.resume(name)
            case "rerun":
                return await client.rerun(name)
            case _:
                return await client.priority(name, priority or 0.0)

    text = form.get("priority", [""])[0]
    priority = read_number(text) if verb == "priority" else None
    if verb == "priority" and priority is None:
        fault = f"priority: expected a number that is not negative, got {text[:80] or 'nothing'}"
        outcome = Outcome(name, ok=False, text=fault)
    else:
        outcome = await change(request, verb, name, act)
    return render(request, "outcomes.html", outcomes=[outcome], bulk=None)


async def _find(request: Request, name: str) -> Reservation:
    """Return the row of a reservation from the view, or from the database if it ended too long ago for the view. Raises
    HTTPException (404) if no reservation has this id.
    """
    client = await backend(request).client(caller(request))
    try:
        row: Reservation | None = await client.get(name)
    except Unavailable:
        row = _find_known(request, name)
        if row is None:
            raise
    if row is None:
        row = next(iter(await client.recall(name)), None)
    if row is None:
        raise HTTPException(404, f"There is no reservation {name[:200]}.")
    return row


def _find_known(request: Request, name: str) -> Reservation | None:
    """Return the row of a reservation as the feed knows it, while Redis does not answer; None if it does not."""
    feed = backend(request).feed
    with feed.lock:
        stored = feed.view.reservations.get(name) or feed.view.ended.get(name)
        if stored is None:
            return None
        row = msgspec.json.decode(msgspec.json.encode(stored), type=Reservation)
        return join_machines(row, feed.view.slots).row


async def _read_events(request: Request, name: str) -> tuple[list[Any], bool]:
    services = backend(request)
    found: list[Event] = []
    try:
        # Changes of cores are many: they must not take the place of others.
        for which in (EventFilter(without=CORES), EventFilter(name=CORES)):
            wanted = msgspec.structs.replace(which, reservation=name, newest=True, limit=500)
            found += await services.run(services.store.read_events, wanted)
    except Unavailable:
        return [], True
    return found, False


PAGE: Final = Page(
    "reservation",
    "Reservation",
    "/reservations",
    21,
    [
        # Below /reservations they would hide a reservation whose id ends so.
        Route("/reservation-explanations/{name:path}", explain_wait),
        Route("/reservation-commands/{name:path}", show_command),
        Route("/reservations/{name:path}/smallest-change", press_change, methods=["POST"]),
        Route("/reservations/{name:path}/undo", undo_change, methods=["POST"]),
        Route("/reservations/{name:path}/do/{verb}", change_reservation, methods=["POST"]),
        Route("/reservations/{name:path}", show_reservation),
    ],
    in_navigation=False,
)


@dataclass(frozen=True)
class Action:
    """One action that the console can request: the verb (name of the request), the id of the object to change, and the
    function that sends the request.
    """

    verb: str
    about: str
    act: Callable[[AsyncClient], Awaitable[object]]


@dataclass(frozen=True)
class Described:
    """An action of a smallest change as a sentence. `verb`: the name of the request by which the console can carry the
    action out; None: no request can, for example for a new host.
    """

    text: str
    verb: str | None


def find_action(document: Mapping[str, Any]) -> Action | None:
    """Return the request that carries out one action of a smallest change (the least change that would end the wait of
    a reservation). Return None if the console has no request for the action, e.g. for a new host.

    `document`: the action as a table with one key, for example `{"resume": "build-1"}`.
    """
    ((name, value),) = document.items()
    match name:
        case "rules":
            return Action("apply", "rules", lambda client: _change_rules(client, value))
        case "release":
            # The console is no holder and has no token: it ends the reservation as an operator does.
            return Action("cancel", value, lambda client: client.cancel(value, reason="ended in the console"))
        case "resume":
            return Action("resume", value, lambda client: client.resume(value))
        case "suspend":
            return Action("suspend", value, lambda client: _suspend(client, value))
        case "cordon":
            return Action("cordon", value, lambda client: client.cordon(value))
        case "uncordon":
            return Action("uncordon", value, lambda client: client.uncordon(value))
        case "priority":
            about, priority = value["reservation"], value["priority"]
            return Action("priority", about, lambda client: client.priority(about, priority))
        case "account":
            fields = cast("AccountFields", {key: each for key, each in value.items() if key in _ACCOUNT_FIELDS})
            return Action("account", value["id"], lambda client: client.account(value["id"], **fields))
    return None


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a change that was made is undone. `actions`: those that reverse the change of rows. `wrote`: the version of
    the rules that the change wrote; 0: it changed no rules. Before version 1 there were none to go back to.
    """

    actions: tuple[dict[str, Any], ...] = ()
    wrote: int = 0


def read_undo(text: str) -> Undo | None:
    """Return the `Undo` in the JSON text of a form; None if it is broken, or names an action without a request."""
    try:
        undo = msgspec.json.decode(text, type=Undo)
        # A form may contain anything: each action must be one that can be described.
        known = [describe_action(each).verb for each in undo.actions]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return None
    return undo if None not in known and (known or undo.wrote) and undo.wrote != 1 else None


def describe_action(document: Mapping[str, Any]) -> Described:
    """Return the sentence that shows an action of a smallest change to people, and the verb of the request that carries
    it out. A smallest change is the least change that would end the wait of a reservation. `document`: as in
    `find_action`.
    """
    action = find_action(document)
    ((name, value),) = document.items()
    verb = None if action is None else action.verb
    match name:
        case "rules":
            text = "apply these rules: " + msgspec.json.encode(value).decode()
        case "release":
            text = f"end the reservation {value}"
        case "priority":
            text = f"set the priority of {value['reservation']} to {value['priority']:g}"
        case "account":
            rest = {key: each for key, each in value.items() if key != "id"}
            text = f"change the account {value['id']}: {msgspec.json.encode(rest).decode()}"
        case "slot":
            text = f"add the host {value.get('id', '')} (a host registers itself)"
        case _:
            text = f"{name} {value}"
    return Described(text, verb)


async def _change_rules(client: AsyncClient, config: Mapping[str, Any]) -> object:
    """Apply the rules in force with the keys in `config` changed. The request is refused if other rules are applied
    between the read of the rules and the change.
    """
    present = await client.rules()
    merged = merge_rules(present.document, dict(config))
    return await client.apply_rules(merged, expected=present.version, source="the smallest change, in the console")


async def _suspend(client: AsyncClient, name: str) -> object:
    row = await client.get(name)
    return await client.suspend(name, row.token or None if row else None)


_ACCOUNT_FIELDS = frozenset(AccountFields.__annotations__)
