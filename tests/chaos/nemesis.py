"""The nemesis: inject faults one after the other, chosen by a random seed, until the run stops it.

Jepsen uses the same name for the process that injects faults.
"""

import json
import random
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self, cast

import boto3
import psycopg
import redis
from botocore.exceptions import BotoCoreError, ClientError
from kombu.exceptions import OperationalError

from leasehold.errors import LeaseholdError
from scheduler.model.slots import Slot
from scheduler.ports import CloudError, StoreUnavailableError
from scheduler.protocol.names import QUEUE_NAMES
from tasks.queues import LAUNCH_BATCH, LAUNCH_SLOT, START_SLOTS, STOP_SLOTS, TERMINATE_SLOT, TERMINATE_SLOTS
from tests.chaos.evidence import HANDS, HOLDERS
from tests.chaos.faults import CALLS, CLOUD_FAULTS, NEEDED, ONLY_KILLED, REFUSALS, REFUSED, SHORT, WEIGHTS
from tests.chaos.hosts import Hosts
from tests.chaos.mallory import Mallory
from tests.chaos.points import POINTS, Order, Point, find_takers, give_order, withdraw_orders
from tests.chaos.restoring import Restorer
from tests.chaos.slow_clients import SlowClients
from workers.embedded_redis import RedisStartError

PAUSE_SECONDS: Final = (0.1, 0.7)
LONGEST_STOP_SECONDS: Final = 6.0
"""Longer than the duration of the leader lock, so that another process replaces a stopped leader."""
FENCE_SECONDS: Final = 8.0
ANSWER_SECONDS: Final = (4.0, 7.0)
"""From the order on: long enough that another worker gets the answer to the same batch, and records it."""
REFUSE_SECONDS: Final = (2.0, 6.0)
"""How long EC2 refuses: long enough that a launch meets it."""
MOST_KEPT: Final = 300
REPEATED: Final = 5
CLOCK_SHIFTS: Final = (-600, -60, -20, -5, 0, 5, 20, 60, 600)
"""Seconds by which the wall clock of one process or of all processes is shifted."""
_ERRORS: Final = (
    LeaseholdError,
    CloudError,
    ClientError,
    BotoCoreError,
    OSError,
    redis.RedisError,
    OperationalError,
    StoreUnavailableError,
    RedisStartError,
    psycopg.Error,
)
"""Errors that a fault may raise while other faults are in effect."""


class Nemesis:
    """Injects faults into `hosts` from its own thread, within `with`.

    `weights`: the faults with their weights. `needed`: those that are injected until each has taken effect, see NEEDED.
    """

    weights: Mapping[str, int] = WEIGHTS
    needed: Mapping[str, Sequence[tuple[Point, Order]]] = NEEDED
    pause_seconds = PAUSE_SECONDS
    clock_shifts: Sequence[float] = CLOCK_SHIFTS

    def __init__(self, hosts: Hosts, seed: int, seconds: float, only: Sequence[str] = ()) -> None:
        self._hosts, self._dice = hosts, random.Random(seed)
        self._injected: list[str] = []
        self._seen_slots: dict[tuple[str, tuple[Any, ...]], None] = {}
        """Orders about slots, each once, in the order of their first observation."""
        self._seen_messages: list[tuple[str, bytes]] = []
        self._machines: dict[str, int] = {}
        """Slot that has a machine → its epoch."""
        self._stopped_before: set[tuple[str, int]] = set()
        """Slots and epochs whose stop was wanted at some time."""
        self._serving: dict[str, int] = {}
        """Slot that takes leases → its epoch."""
        self._timers: dict[Point, threading.Timer] = {}
        """Point → the timer that continues the process that stopped there."""
        self._ordered: list[Point] = []
        """The points of the last orders to kill within calls for several machines."""
        self._shifted: set[str] = set()
        """Processes whose wall clock was shifted at some time."""
        self._protected: set[str] = set()
        """Machines that had termination protection at some time."""
        self._ec2: Any = boto3.client(
            "ec2",
            endpoint_url=hosts.emulator_url,
            region_name="us-east-1",
            aws_access_key_id="nemesis",
            aws_secret_access_key="nemesis",
        )
        self._slow = SlowClients(hosts, self._dice)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="nemesis", daemon=True)
        faults = self._list_faults()
        self._faults = {name: faults[name] for name in self.weights if not only or name in only}
        self._due = [name for name in self.needed if name in self._faults]
        self._dice.shuffle(self._due)
        self._done: set[str] = set()
        """Faults of `needed` without orders that have taken effect."""
        is_restoring = "restore" in only if only else self.weights is WEIGHTS
        self._restorer = Restorer(hosts, self._dice, seconds) if is_restoring else None

    def _list_faults(self) -> dict[str, Callable[[], str]]:
        return {
            "kill": self._kill,
            "stop": self._stop,
            "point": self._order,
            "fence": self._fence,
            "launch": lambda: self._strike("launch"),
            "loss": lambda: self._strike("loss"),
            "calls": self._strike_calls,
            "answer": self._double_answer,
            "redis": self._break_redis,
            "switch": self._switch_redis,
            "clients": self._cut_redis,
            "database": self._cut_database,
            "failover": self._fail_over,
            "cloud": self._break_cloud,
            "refuse": self._refuse,
            "protect": self._protect,
            "notices": self._lose_notices,
            "template": self._hide_templates,
            "interrupt": self._interrupt,
            "repeat": self._repeat,
            "late stop": self._stop_late,
            "hand": self._switch_by_hand,
            "drop": self._drop,
            "clock": self._shift_clock,
            "jump": self._jump,
            "mallory": self._attack,
            "slow clients": self._open_slow_clients,
        }

    @property
    def names(self) -> set[str]:
        """The names of the faults among which it chooses."""
        return set(self._faults)

    @property
    def faults(self) -> list[str]:
        """A line for each injected fault, in order."""
        return sorted([*self._injected, *(self._restorer.faults if self._restorer is not None else ())])

    def __enter__(self) -> Self:
        if self._restorer is not None:
            self._restorer.start()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Inject no more faults, and undo those in effect: stopped processes, Redis, clocks, EC2."""
        self._over.set()
        self._thread.join()
        self._slow.close()
        self._hosts.go_on()
        if self._hosts.database.failover is not None:
            self._hosts.database.failover.settle()
        if self._restorer is not None:
            # On a busy machine the restore may still run when the other faults are over.
            self._restorer.finish()
        self._hosts.shifts.set_all(self._shifted, 0)
        self._hosts.control_emulator("PUT", "faults", [])
        self._hosts.control_emulator("PUT", "settings", {"dropped_notices": 0, "template_lag_seconds": 0})
        for machine in self._protected:
            self._set_protection(machine, is_on=False)
        self._await_redis()

    def _work(self) -> None:
        while not self._over.wait(self._dice.uniform(*self.pause_seconds)):
            self._watch()
            name = self._choose_fault()
            at = datetime.now(UTC).strftime("%H:%M:%S.%f")[:-3]
            try:
                self._injected.append(f"{at} {name}: {self._faults[name]()}")
            except _ERRORS as error:
                self._injected.append(f"{at} {name}: failed ({error})"[:200])

    def _choose_fault(self) -> str:
        """Return a random fault by weight; every other time the next needed one that has had no effect yet.

        No fault breaks Redis during a restore, because the mark of the restore is in Redis.
        """
        self._due = [name for name in self._due if not self._has_struck(name)]
        if self._due and len(self._injected) % 2 == 0:
            self._due.append(self._due.pop(0))
            return self._due[-1]
        weights = {name: self.weights[name] for name in self._faults}
        if self._restorer is not None and self._restorer.is_restoring:
            weights |= dict.fromkeys({"redis", "switch"} & weights.keys(), 0)
        return self._dice.choices(list(weights), list(weights.values()))[0]

    def _has_struck(self, name: str) -> bool:
        orders = self.needed[name]
        return all(map(self._is_taken, orders)) if orders else name in self._done

    def _is_taken(self, order: tuple[Point, Order]) -> bool:
        return bool(find_takers(self._hosts.points, *order))

    def _watch(self) -> None:
        """Record what `_repeat` may send again: orders about the slots in SQL, and the messages in the queues."""
        with suppress(*_ERRORS):
            slots = self._hosts.services.ports.store.find_slots()
            self._machines = {slot.id: slot.epoch for slot in slots if slot.instance_id}
            self._serving = {slot.id: slot.epoch for slot in slots if slot.state == "ready"}
            for slot in slots:
                self._watch_slot(slot)
            for queue in QUEUE_NAMES:
                waiting = cast("list[bytes]", self._hosts.redis.lrange(queue, 0, 20))
                self._seen_messages += [(queue, body) for body in waiting]
        del self._seen_messages[:-MOST_KEPT]

    def _watch_slot(self, slot: Slot) -> None:
        own = slot.id, slot.epoch
        if slot.batch:
            self._seen_slots[LAUNCH_BATCH, (slot.batch,)] = None
        elif slot.launch_id:
            self._seen_slots[LAUNCH_SLOT, (slot.id, slot.launch_id)] = None
        if slot.power == "start":
            self._seen_slots[START_SLOTS, ((own,),)] = None
        elif slot.power == "stop":
            self._seen_slots[STOP_SLOTS, ((own,),)] = None
            self._stopped_before.add(own)
        self._seen_slots[TERMINATE_SLOT, own] = None

    def _choose_process(self) -> str:
        return self._dice.choice(sorted(set(self._hosts.processes) - {"emulator"}))

    def _kill(self) -> str:
        name = self._choose_process()
        self._hosts.signal(name, signal.SIGKILL)
        return name

    def _stop(self) -> str:
        name, seconds = self._choose_process(), self._dice.uniform(0.3, LONGEST_STOP_SECONDS)
        self._hosts.signal(name, signal.SIGSTOP)
        self._later(seconds, lambda: self._hosts.signal(name, signal.SIGCONT))
        return f"{name} for {seconds:.1f} s"

    def _order(self) -> str:
        point, order = self._dice.choice(POINTS), self._dice.choice(["kill", "kill", "stop"])
        if (point, order) == ("between_plan_and_commit", "stop"):
            return self._fence()
        if point in ONLY_KILLED:
            order = "kill"
        give_order(self._hosts.points, point, order)  # type: ignore[arg-type]
        if order == "stop":
            self._later(self._dice.uniform(1, LONGEST_STOP_SECONDS), lambda: self._hosts.go_on_at(point))
        return f"{order} {point}"

    def _fence(self) -> str:
        """Stop a leader that has decisions to write, between plan and commit, for longer than its lock lasts."""
        return self._stop_at("between_plan_and_commit", FENCE_SECONDS)

    def _double_answer(self) -> str:
        """Stop a launch worker that has the answer to a batch, until another one has got and recorded it."""
        return self._stop_at("after_batch_call", self._dice.uniform(*ANSWER_SECONDS))

    def _stop_at(self, point: Point, seconds: float) -> str:
        """Stop the next process that reaches a point. One at a time, so that none continues too early."""
        if (timer := self._timers.get(point)) is not None and timer.is_alive():
            return "a process is stopped already"
        give_order(self._hosts.points, point, "stop")
        self._timers[point] = self._later(seconds, lambda: self._hosts.go_on_at(point))
        return f"stop {point}"

    def _strike(self, name: str) -> str:
        """Give one of the orders of this fault: one that no process has carried out yet, if there is any."""
        orders = [order for order in self.needed[name] if not self._is_taken(order)]
        point, order = self._dice.choice(orders or self.needed[name])
        give_order(self._hosts.points, point, order)
        return f"{order} {point}"

    def _strike_calls(self) -> str:
        """Kill the next process that reaches a point of a call for several machines: one point of each kind of call.

        There is no order while no worker for the call runs. Else it would end as soon as it runs, before other calls.
        """
        chosen: list[Point] = []
        withdraw_orders(self._hosts.points, self._ordered)
        for queue, points in CALLS:
            if self._hosts.has_worker(queue):
                left = [point for point in points if not self._is_taken((point, "kill"))]
                chosen.append(self._dice.choice(left or points))
                give_order(self._hosts.points, chosen[-1], "kill")
        self._ordered = chosen
        if "within_partial_answer" in chosen:
            self._hosts.control_emulator("POST", "faults", {**SHORT, "count": 3, "seconds": 4})
        return f"kill {', '.join(chosen)}" if chosen else "no worker runs"

    def _later(self, seconds: float, act: Callable[[], object]) -> threading.Timer:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
        return timer

    def _break_redis(self) -> str:
        how = self._dice.choice(["flush", "save", "empty", "snapshot"])
        server, folder = self._hosts.redis_server, self._hosts.redis_server.directory
        dump, kept = folder / "dump.rdb", folder / "kept.rdb"
        if how == "flush":
            self._hosts.redis.flushall()
        elif how == "save":
            self._hosts.redis.save()
            shutil.copy(dump, kept)
        else:
            server.kill()
            dump.unlink(missing_ok=True)
            if how == "snapshot" and kept.exists():
                shutil.copy(kept, dump)
            self._over.wait(self._dice.uniform(0, 1))
            server.restart()
        return how

    def _switch_redis(self) -> str:
        """Make the replica of Redis the primary, as a failover does. Open connections stay with the old primary."""
        pair = self._hosts.redis_pair
        if not pair.is_linked():
            return "the replica is not connected yet"
        pair.switch()
        return f"to port {pair.primary.port}"

    def _await_redis(self) -> None:
        if self._hosts.redis_server.process.poll() is not None:
            self._hosts.redis_server.restart()

    def _shift_clock(self) -> str:
        name, seconds = self._choose_process(), self._dice.choice(self.clock_shifts)
        self._hosts.shifts.set(name, seconds)
        self._shifted.add(name)
        return f"{name} by {seconds:+g} s"

    def _jump(self) -> str:
        """Shift the wall clock of all processes by the same amount, like a jump of the host's clock."""
        names, seconds = set(self._hosts.processes) - {"emulator"}, self._dice.choice(self.clock_shifts)
        self._hosts.shifts.set_all(names, seconds)
        self._shifted |= names
        return f"all by {seconds:+g} s"

    def _attack(self) -> str:
        """Let a hostile producer send messages about reservations and slots of others."""
        store = self._hosts.services.ports.store
        rows = [row.id for row in store.find_reservations()]
        slots = [slot.id for slot in store.find_slots()] or ["single-1"]
        if not rows:
            return "nothing to attack"
        mallory = Mallory(self._hosts.redis_server.url, self._hosts.mallory, HOLDERS, self._dice)
        return mallory.attack(rows, slots)

    def _open_slow_clients(self) -> str:
        """Open slow connections to the console, after those of the last time were closed in most cases."""
        if self._dice.random() < 0.7:
            self._slow.close()
        return self._slow.open()

    def _cut_redis(self) -> str:
        return f"{self._hosts.redis.client_kill_filter(_type='normal')} connections"

    def _cut_database(self) -> str:
        """End the connections of all other clients to PostgreSQL, as a restart or a failover does."""
        url = self._hosts.database.direct_url
        if not url.startswith("postgresql"):
            return "a file has no connections"
        with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
            query = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            found = connection.execute(query).fetchone()
        return f"{found[0] if found else 0} connections"

    def _fail_over(self) -> str:
        """Lead the address of the database to a standby for some seconds, promote it, or silence its connections."""
        failover = self._hosts.database.failover
        return failover.strike(self._dice) if failover is not None else "a file has no standby"

    def _break_cloud(self) -> str:
        fault = self._dice.choice(CLOUD_FAULTS)
        self._hosts.control_emulator("POST", "faults", {**fault, "seconds": self._dice.uniform(0.5, 3)})
        return str(fault.get("code", f"answers lost by {fault.get('lost')}"))

    def _refuse(self) -> str:
        """Let EC2 refuse a call, or types in zones, or end machines with a state reason: what it did not refuse yet."""
        kinds = (fault.partition(":") for call in self._list_calls() for fault in call["faults"])
        seen = {(REFUSED.get(kind), code) for kind, _, code in kinds}
        struck = {each["where"] for each in REFUSALS if (each["where"], each["code"]) in seen}
        if struck == set(REFUSED.values()):
            self._done.add("refuse")
        fault = self._dice.choice([each for each in REFUSALS if each["where"] not in struck] or REFUSALS)
        self._hosts.control_emulator("POST", "faults", {**fault, "seconds": self._dice.uniform(*REFUSE_SECONDS)})
        return f"{fault['code']} in a {fault['where']}"

    def _list_calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = self._hosts.control_emulator("GET", "calls")["calls"]
        return calls

    def _protect(self) -> str:
        """Protect half of the running machines from their termination for some seconds."""
        if any(call["code"] == "OperationNotPermitted" for call in self._list_calls()):
            self._done.add("protect")
        running = [each["id"] for each in self._hosts.machines() if each["state"] == "running"]
        machines, seconds = self._dice.sample(running, (len(running) + 1) // 2), self._dice.uniform(2, 5)
        for machine in machines:
            self._protected.add(machine)
            self._set_protection(machine, is_on=True)
            self._later(seconds, partial(self._unprotect, machine))
        return f"{', '.join(machines)} for {seconds:.1f} s" if machines else "no machine"

    def _unprotect(self, machine: str) -> None:
        # Another fault may refuse this call. All protections are removed again when the faults are over.
        with suppress(*_ERRORS):
            self._set_protection(machine, is_on=False)

    def _set_protection(self, machine: str, *, is_on: bool) -> None:
        self._ec2.modify_instance_attribute(InstanceId=machine, DisableApiTermination={"Value": is_on})

    def _lose_notices(self) -> str:
        """Interrupt spot machines, and lose EC2's notices of it and of other changes for some seconds."""
        spot = [each["id"] for each in self._hosts.machines() if (each["state"], each["market"]) == ("running", "spot")]
        machines, deadline = self._dice.sample(spot, min(2, len(spot))), self._dice.uniform(0.2, 2)
        self._hosts.control_emulator("PUT", "settings", {"dropped_notices": 1})
        self._later(deadline + 1, partial(self._hosts.control_emulator, "PUT", "settings", {"dropped_notices": 0}))
        if machines:
            self._hosts.control_emulator("POST", "interrupt", {"instances": machines, "deadline": deadline})
            self._done.add("notices")
        return f"interrupt {', '.join(machines)}" if machines else "no machine"

    def _hide_templates(self) -> str:
        """Delete the launch templates, so that Leasehold makes others, and let EC2 not find these for some seconds."""
        seconds = self._dice.uniform(0.5, 3)
        self._hosts.control_emulator("PUT", "settings", {"template_lag_seconds": seconds})
        found = self._ec2.describe_launch_templates()["LaunchTemplates"]
        for template in found:
            self._ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])
        if any(str(call["code"]).startswith("InvalidLaunchTemplate") for call in self._list_calls()):
            self._done.add("template")
        return f"{len(found)} for {seconds:.1f} s"

    def _interrupt(self) -> str:
        running = [each["id"] for each in self._hosts.machines() if each["state"] == "running"]
        if not running:
            return "no machine"
        machine, how = self._dice.choice(running), self._dice.choice(["interrupt", "interrupt", "lose", "rebalance"])
        options = {"interrupt": {"deadline": self._dice.uniform(1, 4)}}.get(how, {})
        self._hosts.control_emulator("POST", how, {"instances": [machine], **options})
        return f"{how} {machine}"

    def _repeat(self) -> str:
        """Send again what was sent long ago: a copy of a message, or orders about slots."""
        if self._seen_messages and self._dice.random() < 0.3:
            queue, body = self._dice.choice(self._seen_messages)
            self._hosts.redis.lpush(queue, body)
            return f"a message on {queue}"
        seen = list(self._seen_slots)
        ends = [order for order in seen if order[0] == TERMINATE_SLOT]
        late = [order for order in ends if self._is_late(*order[1])]
        orders = [order for orders in (seen, late) if orders for order in self._dice.choices(orders, k=REPEATED)]
        if ends:
            pairs = [pair for _, pair in self._dice.choices([*ends, *late], k=REPEATED)]
            orders.append((TERMINATE_SLOTS, (pairs,)))
        for task, arguments in orders:
            self._hosts.app.send_task(task, args=arguments)
        if late:
            self._done.add("repeat")
        return f"orders about slots, {'with' if late else 'without'} terminations of earlier machines"

    def _is_late(self, slot: str, epoch: int) -> bool:
        """Return whether this slot has a machine of another epoch now."""
        return slot in self._machines and self._machines[slot] != epoch

    def _stop_late(self) -> str:
        """Send again that machines are to be stopped which were started since and take leases."""
        late = [[slot, epoch] for slot, epoch in self._serving.items() if (slot, epoch) in self._stopped_before]
        if late:
            self._hosts.app.send_task(STOP_SLOTS, args=(late,))
            self._done.add("late stop")
        return f"{len(late)} slots"

    def _switch_by_hand(self) -> str:
        """Stop or start a machine, as an operator does without Leasehold."""
        states = {"running": "stop", "stopped": "start"}
        found = [each for each in self._hosts.machines() if each["market"] == "on-demand" and each["state"] in states]
        if not found:
            return "no machine"
        machine = self._dice.choice(found)
        what, fleet = states[machine["state"]], self._hosts.services.ports.fleet
        with (self._hosts.folder / HANDS).open("a") as file:
            file.write(json.dumps({"machine": machine["id"], "what": what}) + "\n")
        (fleet.stop if what == "stop" else fleet.start)([machine["id"]])
        return f"{what} {machine['id']}"

    def _drop(self) -> str:
        """Remove a message from a queue, like a worker that crashes after the pop and before it records the message."""
        queue = self._dice.choice(QUEUE_NAMES)
        taken = self._hosts.redis.brpop([queue], timeout=1)
        return f"a message from {queue}" if taken else f"{queue} was empty"
