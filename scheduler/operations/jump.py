"""The jump of term and fencing token above all numbers that may have been used (docs/adr/0015), after the database went
back to an older state.
"""

from collections.abc import Iterable
from typing import Final

from scheduler.model.events import Event
from scheduler.model.slots import Machine
from scheduler.operations.ports import Ports
from scheduler.ports import ClusterRow

JUMP: Final = 10**10
"""The number by which a restore increases the leader's term and the fencing token. It is more than can have been used
since the highest known ones.
"""
NUMBERS_A_SECOND: Final = 10**4
"""After a restore, terms and tokens are at least this number times the seconds since the epoch. So two restores of one
backup never use the same numbers, even if no trace of the first one is left.
"""
MOST_TRUSTED: Final = 2**52
"""Terms and tokens above this number, in tags of machines and in Redis, are ignored: no cluster can have used them."""
MOST_NUMBER: Final = 2**53
"""Terms and tokens stay below this number, because JSON readers of other languages store numbers as floats."""
RESTORED: Final = "restored"
"""Name of the event that a backup was restored. It is also the reason of the phase of reservations that the restore
changed.
"""


def find_jump(known: Iterable[int], now: float) -> int:
    """Return a term or token that is higher than all `known` ones and than all that can have been used since. `now`:
    the present time. Raises ValueError if no number below MOST_NUMBER is left.
    """
    target = max(max(number for number in (0, *known) if number < MOST_TRUSTED) + JUMP, int(now) * NUMBERS_A_SECOND)
    if target >= MOST_NUMBER:
        raise ValueError(
            f"no term or token below 2**53 is left for another restore: the clock is at {now:.0f} s since the epoch"
        )
    return target


def jump(ports: Ports, terms: Iterable[int], tokens: Iterable[int]) -> None:
    """Increase term and token of the database above its own and these numbers, and record the event `restored`."""
    before = ports.store.read_cluster()
    with ports.store.transaction() as transaction:
        now = transaction.now()
        term, token = find_jump((before.term, *terms), now), find_jump((before.token, *tokens), now)
        transaction.jump(term, token)  # promise: jump-after-restore
        event = Event(
            at=now,
            name=RESTORED,
            cause="operator",
            detail={"term": term, "token": token, "from_term": before.term, "from_token": before.token},
        )
        transaction.append_events([event])


def list_terms(machines: Iterable[Machine]) -> list[int]:
    """Return the terms in the tags of these machines that a cluster can have used."""
    return [each.highest_term for each in machines if each.highest_term < MOST_TRUSTED]


def list_tokens(machines: Iterable[Machine]) -> list[int]:
    """Return the tokens in the tags of these machines that a cluster can have used."""
    return [each.highest_token for each in machines if each.highest_token < MOST_TRUSTED]


def jump_above_tags(ports: Ports, machines: Iterable[Machine], row: ClusterRow, *, has_twin: bool) -> None:
    """Let the numbers jump if the tag of a machine has a higher term or token than the database (`row`, which was read
    after the machines). Such a database is an older state that was put in place while Redis was empty.

    `has_twin`: another installation of the cluster shows signs of life, or they are the former signs of this one. Then
    only the first sweep after Redis was empty compares the tags, because later the other installation launches
    machines with numbers of its own: the two would raise each other's numbers in turn.
    """
    if has_twin and ports.record is not None and ports.record.has_compared_tags():
        return
    terms, tokens = list_terms(machines), list_tokens(machines)
    if max(terms, default=0) > row.term or max(tokens, default=0) > row.token:  # promise: tags-show-older-state
        jump(ports, terms, tokens)
        ports.warn(
            "The database is an older state than the machines' tags show; its numbers jumped.", action="cluster.jumped"
        )
        ports.store.accept_restores(ports.store.read_cluster().restores)
    if ports.record is not None:
        ports.record.keep_compared_tags()  # after the jump, so that a jump that failed is repeated
