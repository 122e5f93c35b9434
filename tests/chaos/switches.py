"""Guards that a run can switch off. The checker must then report violations, which proves that it finds them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scheduler.model.slots import Slot
from scheduler.operations.ports import Ports


def _term() -> None:
    """Commit without a check of the term and its leader."""
    from sqlalchemy import update

    from scheduler.store import tables
    from scheduler.store.sql_transaction import SqlTransaction

    def note_always(self: Any, _leader_term: object, now: float) -> None:
        self._session.change(update(tables.leader).values(ticked_at=now))

    _replace(SqlTransaction, "note_tick", note_always)


def _token() -> None:
    """Launch without Leasehold's client token; botocore then makes a new one for each call."""
    from workers.ec2.fleet import Ec2Fleet

    def without_token(inner: Callable[..., Any]) -> Callable[..., Any]:
        def launch(self: Ec2Fleet, request: Mapping[str, Any]) -> Any:
            parameters = {key: value for key, value in request["parameters"].items() if key != "ClientToken"}
            return inner(self, {**request, "parameters": parameters})

        return launch

    _replace(Ec2Fleet, "launch", without_token(Ec2Fleet.launch))


def _resend() -> None:
    """Let `recover` send no order again."""
    from tasks import machines

    def send_nothing(*_arguments: object) -> int:
        return 0

    _replace(machines, "recover", send_nothing)


def _epoch() -> None:
    """Let a termination end the present machine of its slot, whichever epoch the message has."""
    from scheduler.operations.machines.terminate import terminate
    from tasks import machines

    def end(ports: Ports, slot_id: str, epoch: int) -> str:
        for slot in ports.store.find_slots(ids=[slot_id]):
            if slot.instance_id and slot.epoch != epoch:
                ports.fleet.terminate([slot.instance_id])
        return terminate(ports, slot_id, epoch)

    _replace(machines, "terminate", end)


def _answer() -> None:
    """Let each process that gets the answer to a batch act on it, also if it was recorded before: no slot wants the
    machines then.
    """
    from scheduler.operations.change_set import ChangeSet
    from scheduler.operations.machines import launch

    inner = launch._record

    def record(ports: Ports, rules: Any, asked: Slot, answer: Any) -> Any:
        bound, left, change_set = inner(ports, rules, asked, answer)
        return (bound, left, change_set) if change_set is not None else ([], list(answer.machines), ChangeSet())

    _replace(launch, "_record", record)


def _power() -> None:
    """Let a message start or stop the machine of its slot, whether or not the slot still wants that."""
    from scheduler.operations.machines import power

    def list_all(ports: Ports, wanted: Sequence[tuple[str, int]], _power: str) -> tuple[list[Slot], dict[str, str]]:
        pairs = set(wanted)
        found = ports.store.find_slots(ids=[name for name, _ in wanted])
        return [slot for slot in found if (slot.id, slot.epoch) in pairs and slot.instance_id is not None], {}

    _replace(power, "_list_due", list_all)


def _jump() -> None:
    """Let a restore continue with the numbers of its backup, and let no process refuse an older state."""
    from scheduler.ports import ClusterRow
    from scheduler.store.sql_transaction import SqlTransaction

    def do_nothing(*_arguments: object) -> None:
        return None

    _replace(SqlTransaction, "jump", do_nothing)
    _replace(ClusterRow, "refuse_older", do_nothing)


def _replace(owner: object, name: str, by: Callable[..., object]) -> None:
    setattr(owner, name, by)


SWITCHES: Final[dict[str, Callable[[], None]]] = {
    "term": _term,
    "token": _token,
    "resend": _resend,
    "epoch": _epoch,
    "answer": _answer,
    "power": _power,
    "jump": _jump,
}
