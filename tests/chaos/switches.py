"""What can be switched off to see whether the run notices: each is one of the guards that the promises rest on."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from scheduler.model.slots import Machine
from scheduler.operations.ports import Ports


def _term() -> None:
    """Commits test neither the term nor its holder."""
    from sqlalchemy import update

    from scheduler.store import tables
    from scheduler.store.sql_transaction import SqlTransaction

    def check_nothing(_self: SqlTransaction, _tenure: object) -> None:
        return None

    def note_anyhow(self: Any, _tenure: object, now: float) -> None:
        self._session.change(update(tables.leader).values(ticked_at=now))

    _replace(SqlTransaction, "check_term", check_nothing)
    _replace(SqlTransaction, "note_tick", note_anyhow)


def _token() -> None:
    """Launches go without our client token: botocore makes one up for each call."""
    from workers.ec2.fleet import Ec2Fleet

    inner = Ec2Fleet.launch

    def launch(self: Ec2Fleet, request: Mapping[str, Any]) -> Machine:
        parameters = {key: value for key, value in request["parameters"].items() if key != "ClientToken"}
        return inner(self, {**request, "parameters": parameters})

    _replace(Ec2Fleet, "launch", launch)


def _resend() -> None:
    """`recover` sends nothing again."""
    from tasks import machines

    def send_nothing(*_arguments: object) -> int:
        return 0

    _replace(machines, "recover", send_nothing)


def _epoch() -> None:
    """A termination hits whatever machine its slot has by now, wanted or not."""
    from scheduler.operations.machines.terminate import terminate
    from tasks import machines

    def end(ports: Ports, slot_id: str, epoch: int) -> str:
        for slot in ports.store.find_slots(ids=[slot_id]):
            if slot.instance_id and slot.epoch != epoch:
                ports.fleet.terminate([slot.instance_id])
        return terminate(ports, slot_id, epoch)

    _replace(machines, "terminate", end)


def _jump() -> None:
    """A restore counts on from the numbers of its backup, and no process refuses an older state."""
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
    "jump": _jump,
}
