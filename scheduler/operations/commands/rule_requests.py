"""Requests about the rules: read them with their history, preview other rules, and apply rules.

Each list in an answer has a greatest length. Where a list may be cut, the answer also has its whole length.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from scheduler.model.command_schemas import ApplyDocument
from scheduler.model.decisions import Claim, describe_decision
from scheduler.model.principals import Principal, find_role_fault
from scheduler.model.rules import Rules, read_rules
from scheduler.model.validation import Fault, InvalidInputError, read_document, show
from scheduler.operations.commands.intake import count_results
from scheduler.operations.commands.submit import Answer, refuse
from scheduler.operations.market import check_requirements
from scheduler.operations.membership import check_membership
from scheduler.operations.ports import Ports
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.rules.apply import Applied, RulesChangedError, write_rules
from scheduler.operations.rules.history import describe_history
from scheduler.operations.rules.preview import rehearse_rules
from scheduler.ports import StoredAnswer, Transaction

RULES: Final = "rules"
"""The field of a request that contains a document of rules. The paths of faults begin with it."""
MOST_SHOWN: Final = 200
"""The most entries of each list of a preview or of a version's changes in one answer."""
MOST_INNER: Final = 100
"""The most entries of a list inside an entry of another list, for example the leases of one decision."""
_HIDDEN: Final = "user_data"


def describe_rules(ports: Ports, principal: Principal | None, history: int) -> Answer:
    """Return the rules in force and, with `history` above 0, that many of their newest versions, oldest first.
    `principal`: the sender; None: the request was not signed.

    The user data of pools may contain secrets for operators only. In the answer to a signed request of any other
    principal it is missing, and `hidden` has the paths of the missing values.
    """
    stored = ports.store.load_rules()
    pools: Mapping[str, Any] = stored.document.get("pools", {})
    shown, hidden = dict(pools), list[str]()
    for name, pool in pools.items() if principal is not None and principal.role != "operator" else ():
        if pool.get("ec2", {}).get(_HIDDEN) is not None:
            shown[name] = pool | {"ec2": {key: value for key, value in pool["ec2"].items() if key != _HIDDEN}}
            hidden.append(f"pools.{name}.ec2.{_HIDDEN}")
    document = {**stored.document, **({"pools": shown} if shown else {})}
    versions = [_cut_lists(each, MOST_SHOWN) for each in describe_history(ports.store, history)] if history else []
    return {"version": stored.version, "document": document, "hidden": hidden, "history": versions}


def preview_request(ports: Ports, document: Mapping[str, Any]) -> Answer:
    """Return what would happen if `document` became the rules in force, and what the next tick would decide under the
    present and under the given rules. Nothing is written. Raises InvalidInputError for invalid rules.
    """
    _read(document)
    found = rehearse_rules(ports.store, document, prefix=RULES)
    preview = msgspec.to_builtins(found.preview)
    preview["launches"] = dict(list(preview["launches"].items())[:MOST_SHOWN])
    next_tick: dict[str, Any] = {"present": [], "proposed": [], "totals": {}, "waiting": {}}
    for name, planned in (("present", found.present), ("proposed", found.proposed)):
        # The decisions have the format in which `leasehold simulate` prints them. Claims are omitted.
        made = [each for each in planned.decisions if not isinstance(each, Claim)]
        next_tick[name] = [_cut_lists(describe_decision(each), MOST_INNER) for each in made[:MOST_SHOWN]]
        next_tick["totals"][name] = dict(Counter(str(each.__struct_config__.tag) for each in made))
        next_tick["waiting"][name] = dict(Counter(code for code, _ in planned.waiting.reasons))
    return {**_cut_lists(preview, MOST_SHOWN), "takes_away": found.preview.takes_away, "next_tick": next_tick}


def _cut_lists(table: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Return `table` with its lists cut to at most `most` entries. If a list was longer, the result also has the table
    `lengths`: name of the list -> its whole length. Lists inside an entry are cut to MOST_INNER.
    """
    lists = {name: value for name, value in table.items() if isinstance(value, list | tuple)}
    lengths = {name: len(value) for name, value in lists.items() if len(value) > most}
    cut = {
        name: [_cut_lists(each, MOST_INNER) if isinstance(each, dict) else each for each in value[:most]]
        for name, value in lists.items()
    }
    return {**table, **cut, **({"lengths": lengths} if lengths else {})}


def apply_request(ports: Ports, document: object, principal: Principal | None) -> Answer:
    """Carry out a request that applies rules, and return its answer: `version` and `changed`, or the faults.

    The id of the request and its answer are stored with the change, so a repeated request changes nothing and gets the
    stored answer. The change is announced after the commit. A repeated request also requests a tick, in case the
    process ended before the announcement.
    """
    try:
        if forbidden := find_role_fault(principal, "apply"):
            answer = refuse([forbidden])
        else:
            asked = read_document(ApplyDocument, document)
            rules = _read(asked.rules)
            check_requirements(ports.store, rules, RULES)
            answer = _apply(ports, asked, rules, principal)
    except InvalidInputError as error:
        answer = refuse(error.faults)
    count_results(ports.meter, principal, answer)
    return answer


def _read(document: Mapping[str, Any]) -> Rules:
    """Return the rules in a document. Raises InvalidInputError if the document is wrong or names a file: a worker reads
    no files for a request.
    """
    rules = read_rules(document, RULES)
    faults = [
        Fault(
            f"{RULES}.pools.{name}.ec2.user_data_file",
            "the text itself, in user_data (a worker reads no files)",
            show(file),
        )
        for name, pool in rules.pools.items()
        if pool.ec2.user_data is None and (file := pool.ec2.user_data_file) is not None
    ]
    if faults:
        raise InvalidInputError(faults)
    return rules


@repeated_if_overtaken
def _apply(ports: Ports, asked: ApplyDocument, rules: Rules, principal: Principal | None) -> Answer:
    check_membership(ports)
    sender = None if principal is None else principal.name
    with ports.store.transaction() as transaction:
        known = transaction.find_answers([asked.request]).get(asked.request)
        applied, answer = _write(transaction, asked, rules, principal) if known is None else (None, {})
        if known is None:
            transaction.save_answers([StoredAnswer(asked.request, transaction.now(), answer, sender)])
    if known is not None:
        # The process that carried the request out first may have ended before it requested a tick. The tick also
        # publishes the rows that the view lacks.
        if known.principal != sender:
            return refuse([Fault("request", "an id that no other principal has used", show(asked.request), "conflict")])
        ports.notifier.kick()
        return known.answer
    if applied is not None:
        applied.announce(ports)
    return answer


def _write(
    transaction: Transaction, asked: ApplyDocument, rules: Rules, principal: Principal | None
) -> tuple[Applied | None, Answer]:
    """Write the rules in a transaction. Return two things: what was applied, and the answer to the request. If another
    version is in force than the request expects, write nothing and return None and the answer that refuses the request.
    """
    source = asked.source or ("a request" if principal is None else f"a request of {principal.name}")
    try:
        applied = write_rules(
            transaction,
            asked.rules,
            rules,
            cause="operator",
            source=source,
            expected=asked.expected,
            principal=principal,
        )
    except RulesChangedError as error:
        wanted = f"the version of the rules in force, which is {error.version} now"
        return None, refuse([Fault("expected", wanted, show(asked.expected), "conflict")])
    return applied, {"ok": True, "version": applied.version, "changed": applied.changed}
