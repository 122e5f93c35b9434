"""Commands on leases: the rights of submitters and hosts, and the effects of outcomes on reservations."""

import hashlib
import json
from collections.abc import Iterator
from itertools import count
from typing import Any, Final
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.principals import Principal
from scheduler.model.reservations import Reservation
from scheduler.model.runs import RunState
from scheduler.operations.commands.gathered import Message, accept_gathered
from scheduler.operations.commands.intake import accept
from scheduler.operations.explain import explain
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import Store
from scheduler.protocol.signing import RunFields, is_run_signed_by
from scheduler.store.memory import MemoryStore
from scheduler.store.opening import open_store
from tests.generated import TIMES
from tests.operations.harness import NOW, Harness

SHOP: Final = Principal(name="shop", role="producer", accounts=("build",), rights=("run",))
PLAIN: Final = Principal(name="plain", role="producer")
OPERATOR: Final = Principal(name="ops", role="operator")
KEYS: Final = {name: name.encode().ljust(32, b"k") for name in ("lab-1", "lab-2", "lab-3")}
HOSTS: Final = {name: Principal(name=name, role="host", key=key) for name, key in KEYS.items()}
RULES: Final[dict[str, Any]] = {
    "scheduler": {"preemption_grace": 45},
    "pools": {
        "lab": {
            "system": "lab-linux",
            "provider": "static",
            "lease_ttl": 600,
            "offline_timeout": 30,
            "max_leases_per_slot": 4,
        }
    },
}
SECRET: Final = "s3cr3t-of-the-shop"
RUN: Final[dict[str, Any]] = {"argv": ["sh", "-c", f"echo {SECRET}"], "env": {"PASSWORD": SECRET}}
NONCE: Final = "n" * 16
ELASTIC: Final = [{"name": "main"}, {"name": "more", "count": 2, "kind": "elastic"}]


class Cluster:
    """A harness with static hosts, which send signed messages."""

    def __init__(self, store: Store | None = None, hosts: int = 1) -> None:
        self.harness = Harness(RULES, store=store)
        for number in range(1, hosts + 1):
            self.register(f"lab-{number}")

    def register(self, slot: str, run: str = "run-1") -> None:
        host = {"slot": slot, "machine": f"m-{slot}", "run": run}
        assert self.ask(HOSTS[slot], "register", pool="lab", resources={"cpus": 4}, address="10.0.0.1", **host)["ok"]

    def ask(self, principal: Principal | None, verb: str, **document: Any) -> dict[str, Any]:
        """Send a request of this principal and return the answer."""
        return accept(self.harness.ports, verb, {"request": uuid4().hex} | document, principal=principal)

    def submit(self, name: str = "r1", run: Any = RUN, **fields: Any) -> dict[str, Any]:
        return self.ask(SHOP, "submit", **{"id": name, "pool": "lab", "run": run} | fields)

    def lease(self, name: str = "r1", **fields: Any) -> "Cluster":
        """Submit a reservation with a command and lease it."""
        answer = self.submit(name, **fields)
        assert answer["ok"], answer
        self.harness.tick()
        assert self.row(name).phase == "leased"
        return self

    def row(self, name: str = "r1") -> Reservation:
        return self.harness.store.find_reservations(ids=[name])[0]

    def report(self, verb: str, name: str = "r1", component: str = "main", **fields: Any) -> dict[str, Any]:
        """Send a message of the host that holds this lease, or held it, and return the answer."""
        lease = next((each for each in self.row(name).leases if each.component == component), None)
        known = next((e for e in self.harness.store.find_executions(name) if e.component == component), None)
        slot = fields.pop("slot", lease.slot if lease else known.slot if known else "lab-1")
        token = lease.token if lease else known.token if known else self.row(name).token
        document = {"slot": slot, "machine": f"m-{slot}", "run": "run-1", "reservation": name, "component": component}
        document |= {"token": token} | ({"nonce": NONCE} if verb == "take" else {})
        sender = fields.pop("sender", HOSTS.get(slot))
        return self.ask(sender, verb, **document | fields)

    def begin(self, name: str = "r1", component: str = "main") -> "Cluster":
        """Let the host of a lease take and start its command."""
        assert self.report("take", name, component)["ok"]
        assert self.report("started", name, component)["ok"]
        return self

    def finish(self, why: str = "exited", name: str = "r1", component: str = "main", **fields: Any) -> Reservation:
        """Let the host report how the command has ended, and return the row of the reservation."""
        fields |= {"exit_code": 0} if why == "exited" and "exit_code" not in fields else {}
        answer = self.report("exited", name, component, why=why, **fields)
        assert answer["ok"], answer
        return self.row(name)


def fault(answer: dict[str, Any]) -> tuple[str, str | None]:
    (error,) = answer["errors"]
    return error["path"], error["code"]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(lambda: NOW)
        return
    opened = open_store(request.getfixturevalue(f"{request.param}_url"))
    yield opened
    opened.close()


class TestSubmission:
    @pytest.mark.parametrize("sender", [None, PLAIN, OPERATOR, HOSTS["lab-1"]])
    def test_a_sender_without_the_right_is_refused(self, sender: Principal | None) -> None:
        cluster = Cluster()
        answer = cluster.ask(sender, "submit", id="r1", pool="lab", run=RUN)
        path = "principal" if sender is HOSTS["lab-1"] else "run"
        assert fault(answer) == (path, "forbidden")
        assert SECRET not in str(answer)
        assert cluster.harness.store.find_reservations() == []

    def test_an_operator_with_the_right_may_submit(self) -> None:
        operator = msgspec.structs.replace(OPERATOR, rights=("run",))
        assert Cluster().ask(operator, "submit", id="r1", pool="lab", run=RUN)["ok"]

    def test_on_the_owners_own_stack_an_unsigned_request_may_have_a_command(self) -> None:
        cluster = Cluster()
        cluster.harness.ports.is_own_stack = True
        assert cluster.ask(None, "submit", id="r1", pool="lab", run=RUN)["ok"]
        # A signed sender without the right is still refused.
        assert fault(cluster.ask(PLAIN, "submit", id="r2", pool="lab", run=RUN)) == ("run", "forbidden")

    def test_a_message_cannot_make_a_stack_the_owners_own(self) -> None:
        answer = Cluster().ask(None, "submit", id="r1", pool="lab", run=RUN, is_own_stack=True)
        assert answer["errors"][0]["path"] == "is_own_stack"

    def test_the_command_is_stored_apart_from_the_row(self, store: Store) -> None:
        cluster = Cluster(store)
        assert cluster.submit()["ok"]
        assert cluster.row().run == RunState("waiting")
        stored = json.loads(store.find_command("r1") or "")
        assert (stored["argv"], stored["env"]) == (RUN["argv"], RUN["env"])
        cluster.harness.tick()
        view = cluster.harness.ports.view_cache.load()
        assert view is not None
        rows = [*store.find_reservations(), *cluster.harness.events, *view.reservations.values()]
        assert SECRET not in str(rows)

    def test_each_wrong_part_has_a_fault_that_shows_no_value(self) -> None:
        cases: list[tuple[Any, str]] = [
            ([SECRET], "run"),
            ({"argv": SECRET}, "run.argv"),
            ({"argv": []}, "run.argv"),
            ({"argv": [""]}, "run.argv"),
            ({"argv": ["a", 3]}, "run.argv[1]"),
            ({"argv": ["a", f"{SECRET}\0"]}, "run.argv[1]"),
            ({"argv": ["a"] * 1001}, "run.argv"),
            ({"argv": [SECRET * 5000]}, "run"),
            ({}, "run.argv"),
            ({"argv": ["a"], "env": [SECRET]}, "run.env"),
            ({"argv": ["a"], "env": {"A": f"{SECRET}\0"}}, "run.env.A"),
            ({"argv": ["a"], "env": {f"{SECRET}=1": "x"}}, "run.env"),
            ({"argv": ["a"], "env": {"1A": SECRET}}, "run.env"),
            ({"argv": ["a"], "env": {"LEASEHOLD_TOKEN": SECRET}}, "run.env"),
            ({"argv": ["a"], "cwd": "relative"}, "run.cwd"),
            ({"argv": ["a"], "user": "no such user"}, "run.user"),
            ({"argv": ["a"], "stop_signal": "SEGV"}, "run.stop_signal"),
            ({"argv": ["a"], "grace": -1}, "run.grace"),
            ({"argv": ["a"], "on_exit": "ignore"}, "run.on_exit"),
            ({"argv": ["a"], "command": "b"}, "run.command"),
        ]
        cluster = Cluster()
        for run, path in cases:
            answer = cluster.submit(run=run)
            (error,) = answer["errors"]
            assert (error["path"], bool(error["expected"]), bool(error["got"])) == (path, True, True)
            assert SECRET not in str(answer)

    def test_the_same_id_again_keeps_the_first_command_and_shows_none(self, store: Store) -> None:
        cluster = Cluster(store)
        cluster.submit()
        again = cluster.submit(run={"argv": ["true"]})
        assert [each["path"] for each in again["notes"]] == ["run"]
        assert "notes" not in cluster.submit()
        assert [each["path"] for each in cluster.submit(run=None)["notes"]] == ["run"]
        assert SECRET not in str(again)
        assert json.loads(store.find_command("r1") or "")["argv"] == RUN["argv"]

    def test_a_command_is_submitted_again_with_its_secrets(self, store: Store) -> None:
        cluster = Cluster(store)
        fields = {"labels": {"zone": "a"}, "priority": 3, "expected_runtime": 60, "components": ELASTIC}
        assert cluster.submit("r1", **fields)["ok"]
        assert cluster.ask(SHOP, "cancel", reservation="r1")["ok"]
        answer = cluster.ask(SHOP, "rerun", reservation="r1", id="r2")
        assert (answer["ok"], answer["reservation"], answer["phase"]) == (True, "r2", "pending")
        assert store.find_command("r2") == store.find_command("r1")
        first, again = cluster.row("r1"), cluster.row("r2")
        assert (again.request, again.priority, again.principal) == (first.request, 3, "shop")
        assert SECRET not in str(answer)

    def test_a_worker_submits_a_command_again(self, store: Store) -> None:
        """Workers carry out every request as gathered ones."""
        cluster = Cluster(store)
        assert cluster.submit("r1")["ok"]
        asked = [{"request": name, "reservation": name, "id": f"{name}-again"} for name in ("r1", "unknown")]
        found = accept_gathered(cluster.harness.ports, [Message("rerun", each, SHOP) for each in asked])
        good, bad = (each if isinstance(each, dict) else {"raised": each} for each in found)
        assert (good["ok"], good["reservation"], good["phase"]) == (True, "r1-again", "pending")
        assert fault(bad) == ("reservation", "unknown")
        assert store.find_command("r1-again") == store.find_command("r1")

    def test_a_repeated_request_to_run_again_gets_its_first_answer(self, store: Store) -> None:
        cluster = Cluster(store)
        assert cluster.submit("r1")["ok"]
        asked = {"request": "q1", "reservation": "r1", "id": "r2"}
        answers = [accept(cluster.harness.ports, "rerun", asked, principal=SHOP) for _ in range(2)]
        assert answers[0]["ok"]
        assert answers[0] == answers[1]

    @pytest.mark.parametrize(
        ("principal", "name", "path"),
        [
            (None, "r1", "principal"),
            (PLAIN, "r1", "reservation"),
            (msgspec.structs.replace(SHOP, rights=()), "r1", "run"),
            (msgspec.structs.replace(SHOP, accounts=()), "r1", "account"),
            (OPERATOR, "r1", "run"),
            (SHOP, "plain", "reservation"),
            (SHOP, "unknown", "reservation"),
        ],
    )
    def test_a_sender_that_may_not_submit_a_command_may_not_submit_it_again(
        self, principal: Principal | None, name: str, path: str
    ) -> None:
        cluster = Cluster()
        assert cluster.submit("r1", account="build")["ok"]
        assert cluster.ask(SHOP, "submit", id="plain", pool="lab")["ok"]
        (error,) = cluster.ask(principal, "rerun", reservation=name, id="r2")["errors"]
        assert error["path"] == path
        assert not cluster.harness.store.find_reservations(ids=["r2"])

    def test_a_command_runs_only_in_pools_with_agents(self) -> None:
        cluster = Cluster()
        elastic = {"ec2": {"system": "lab-linux", "max_slots": 1}, "bare": {"system": "bare", "max_slots": 1}}
        apply_rules(cluster.harness.ports, {"pools": {**elastic, **RULES["pools"]}})
        plain, command = {"pool": None, "system": "lab-linux"}, {"run": RUN}
        assert cluster.ask(SHOP, "submit", items=[{"id": f"r{each}", **plain, **command} for each in range(5)])["ok"]
        for asked in ({"pool": "ec2"}, {"pool": None, "system": "bare"}):
            (error,) = cluster.submit("x", **asked)["errors"]
            assert (error["path"], error["expected"]) == (
                "run",
                "a pool whose hosts have agents (`agent = true`, or a static one)",
            )
        for state in ("empty", "launching"):
            cluster.harness.tick()
            assert [cluster.row(f"r{each}").phase for each in range(5)] == ["leased"] * 4 + ["pending"]
            slots = {each.id: each.state for each in cluster.harness.store.find_slots()}
            assert slots.get("ec2-1", "empty") == state
            assert cluster.ask(SHOP, "submit", id="plain", **plain)["ok"]

    def test_a_command_waits_while_no_pool_with_agents_serves_it(self) -> None:
        cluster = Cluster(hosts=0)
        assert cluster.submit("r1")["ok"]
        apply_rules(cluster.harness.ports, {"pools": {"lab": {"system": "lab-linux", "max_slots": 1}}})
        cluster.harness.tick()
        asked = explain(cluster.harness.ports, "r1")
        assert asked["waiting"] == {
            "code": "no_pool",
            "detail": "no pool is named lab and has agents, which run commands",
        }
        assert asked["needs"] == ["a pool with the name lab, whose machines have an agent"]

    def test_a_list_has_a_command_for_each_of_its_reservations(self, store: Store) -> None:
        cluster = Cluster(store)
        items = [{"id": f"r{number}", "pool": "lab", "run": {"argv": ["job", str(number)]}} for number in (1, 2)]
        assert cluster.ask(SHOP, "submit", items=[*items, {"id": "r3", "pool": "lab"}])["ok"]
        found = [store.find_command(name) for name in ("r1", "r2", "r3")]
        assert [text and json.loads(text)["argv"] for text in found] == [["job", "1"], ["job", "2"], None]

    def test_the_command_goes_with_its_reservation(self, store: Store) -> None:
        cluster = Cluster(store).lease().begin()
        cluster.finish()
        store.prune(events_before=0, requests_before=0, ended_before=store.now() + 1)
        assert store.find_reservations(ids=["r1"]) == []
        assert (store.find_command("r1"), store.find_executions("r1")) == (None, [])


class TestTake:
    def test_the_host_gets_the_command_signed_for_its_request(self, store: Store) -> None:
        cluster = Cluster(store).lease()
        answer = cluster.report("take")
        command = json.loads(answer["command"])
        assert (command["argv"], command["env"]) == (RUN["argv"], RUN["env"])
        assert (command["grace"], command["offline_timeout"], command["stop_signal"]) == (45, 30, "TERM")
        assert command["peers"] == [{"component": "main", "slot": "lab-1", "address": "10.0.0.1"}]
        assert 0 < command["ttl"] <= 600
        token = cluster.row().token
        assert (command["reservation"], command["component"], command["token"]) == ("r1", "main", token)
        digest = hashlib.sha256(answer["command"].encode()).hexdigest()
        identity = store.read_cluster().identity
        signed = RunFields(identity, "lab-1", "lab-1", "m-lab-1", "run-1", "r1", "main", str(token), NONCE, digest)
        assert is_run_signed_by(KEYS["lab-1"], signed, answer["signature"])
        # The signature is for this nonce, this cluster and this text alone: an altered or replayed answer is noticed.
        for changed in (
            signed._replace(nonce="m" * 16),
            signed._replace(cluster="another"),
            signed._replace(command_sha256=hashlib.sha256(b"{}").hexdigest()),
        ):
            assert not is_run_signed_by(KEYS["lab-1"], changed, answer["signature"])
        assert not is_run_signed_by(KEYS["lab-2"], signed, answer["signature"])

    def test_the_answer_is_not_stored(self, store: Store) -> None:
        cluster = Cluster(store).lease()
        assert cluster.report("take", request="take-1")["ok"]
        with store.transaction() as transaction:
            assert transaction.find_answers(["take-1"]) == {}
        assert cluster.report("take", request="take-1")["ok"]
        cluster.harness.ask("cancel", reservation="r1")
        # A copy is judged again, and the lease has ended.
        assert not cluster.report("take", request="take-1")["ok"]

    def test_the_same_agent_may_ask_again_and_another_one_may_not(self, store: Store) -> None:
        cluster = Cluster(store).lease()
        assert cluster.report("take")["ok"]
        assert cluster.report("take")["ok"]
        assert len(store.find_executions("r1")) == 1
        # The agent was started again: the earlier one may have begun the command.
        row = cluster.harness.slot("lab-1")
        cluster.harness.put(msgspec.structs.replace(row, run="run-2"))
        answer = cluster.report("take", run="run-2")
        assert fault(answer) == ("run", "conflict")
        assert "command" not in answer
        assert store.find_executions("r1")[0].run == "run-1"

    @pytest.mark.parametrize("verb", ["take", "started", "output", "exited"])
    @pytest.mark.parametrize(
        ("changes", "path"),
        [
            pytest.param({"sender": None}, "principal", id="unsigned"),
            pytest.param({"sender": SHOP}, "principal", id="the producer"),
            pytest.param({"sender": HOSTS["lab-2"]}, "slot", id="another host for this slot"),
            pytest.param({"sender": HOSTS["lab-2"], "slot": "lab-2"}, None, id="another host for its own slot"),
            pytest.param({"machine": "m-clone"}, "machine", id="another machine"),
            pytest.param({"run": "run-0"}, "run", id="an earlier agent"),
            pytest.param({"token": 99}, "token", id="another token"),
            pytest.param({"component": "other"}, None, id="another component"),
            pytest.param({"reservation": "unknown"}, "reservation", id="an unknown reservation"),
            pytest.param({"reservation": "bare"}, "reservation", id="a reservation without a command"),
        ],
    )
    def test_only_the_host_of_the_lease_is_answered(self, verb: str, changes: dict[str, Any], path: str | None) -> None:
        cluster = Cluster(hosts=2).lease()
        cluster.ask(SHOP, "submit", id="bare", pool="lab")
        cluster.harness.tick()
        if verb != "take":
            assert cluster.report("take")["ok"]
        more: dict[str, Any] = {"why": "exited", "exit_code": 0} if verb == "exited" else {}
        lease = cluster.row().leases[0]
        if lease.slot != "lab-1":
            pytest.fail("the lease is expected on lab-1")
        before = cluster.row(), cluster.harness.store.find_executions("r1")
        answer = cluster.report(verb, **more | changes)
        assert not answer["ok"]
        assert "command" not in answer
        assert path is None or fault(answer)[0] == path
        assert (cluster.row(), cluster.harness.store.find_executions("r1")) == before

    def test_an_operator_takes_no_command(self) -> None:
        answer = Cluster().lease().report("take", sender=OPERATOR)
        assert fault(answer) == ("principal", "forbidden")

    def test_a_command_that_has_started_or_ended_is_not_taken_again(self) -> None:
        cluster = Cluster().lease().begin()
        assert fault(cluster.report("take")) == ("token", "conflict")

    def test_a_lease_of_an_earlier_registration_is_not_taken(self) -> None:
        cluster = Cluster().lease()
        row = cluster.harness.slot("lab-1")
        cluster.harness.put(msgspec.structs.replace(row, epoch=row.epoch + 1))
        assert fault(cluster.report("take")) == ("reservation", "conflict")

    def test_a_lease_that_is_being_revoked_is_not_taken(self) -> None:
        cluster = Cluster().lease()
        revoke(cluster)
        assert fault(cluster.report("take")) == ("reservation", "conflict")


def revoke(cluster: Cluster, name: str = "r1") -> None:
    """Let a reservation have to give its leases back within the grace period."""
    row = cluster.row(name)
    by = cluster.harness.store.now() + 45
    leases = tuple(msgspec.structs.replace(lease, state="revoking", revoke_by=by) for lease in row.leases)
    changes: dict[str, Any] = {"phase": "revoking", "revoke_reason": "preempted", "revoke_by": by, "leases": leases}
    cluster.harness.put(msgspec.structs.replace(row, **changes))


class TestHints:
    def test_the_hint_about_a_lease_names_its_command(self) -> None:
        cluster = Cluster().lease()
        (lease,) = cluster.row().leases
        named = {"reservation": "r1", "component": "main", "token": lease.token}
        hint = {"slot": "lab-1", "state": "ready", "cordoned": False}
        assert cluster.harness.notifier.news[-1] == ("lab-1", hint | {"commands": [named]})
        cluster.begin().finish()
        assert cluster.harness.notifier.news[-1] == ("lab-1", hint)
        assert cluster.ask(SHOP, "submit", id="bare", pool="lab")["ok"]
        cluster.harness.tick()
        assert cluster.row("bare").phase == "leased"
        assert cluster.harness.notifier.news[-1] == ("lab-1", hint)


class TestOutcomes:
    def test_a_start_confirms_and_renews_the_lease(self, store: Store) -> None:
        cluster = Cluster(store).lease()
        assert cluster.report("take")["ok"]
        assert (cluster.row().run, cluster.row().confirmed_at) == (RunState("waiting"), None)
        assert cluster.report("started")["ok"]
        assert cluster.row().run == RunState("running")
        assert cluster.row().confirmed_at is not None
        (run,) = store.find_executions("r1")
        assert (run.state, run.started_at is not None) == ("started", True)

    @pytest.mark.parametrize(
        ("why", "fields", "on_exit", "phase", "reason"),
        [
            ("exited", {"exit_code": 0}, "fail", "released", None),
            ("exited", {"exit_code": 3}, "fail", "failed", "exited"),
            ("exited", {"exit_code": 3}, "release", "released", None),
            ("signal", {"signal": 11}, "fail", "failed", "signal"),
            ("signal", {"signal": 11}, "release", "failed", "signal"),
            ("not_started", {"error": "no such file"}, "fail", "failed", "not_started"),
            ("out_of_memory", {"signal": 9}, "fail", "failed", "out_of_memory"),
            ("limit", {"signal": 15}, "fail", "failed", "limit"),
            ("lost", {}, "fail", "pending", "run_lost"),
            ("fenced", {"signal": 9}, "fail", "pending", "run_lost"),
            ("revoked", {"signal": 15}, "fail", "pending", "run_lost"),  # without a deadline: the host was wrong
        ],
    )
    def test_the_outcome_decides(
        self, store: Store, why: str, fields: dict[str, Any], on_exit: str, phase: str, reason: str | None
    ) -> None:
        cluster = Cluster(store).lease(run={**RUN, "on_exit": on_exit}).begin()
        row = cluster.finish(why, tail="the end", bytes=7, **fields)
        assert (row.phase, row.reason) == (phase, reason)
        (run,) = store.find_executions("r1")
        assert (run.state, run.why, run.tail, run.bytes) == ("ended", why, "the end", 7)
        assert (run.exit_code, run.signal) == (fields.get("exit_code"), fields.get("signal"))
        if phase in {"released", "failed"}:
            assert row.run == RunState("ended", run.exit_code, run.signal, run.why)
            event = cluster.harness.events[-1]
            assert event.detail.get("why") == why
        else:
            assert (row.run, row.interruptions) == (RunState("waiting"), 1)

    @pytest.mark.parametrize("grace", [0, 45])
    def test_a_command_at_the_limit_of_its_lease_ends_and_its_reservation_expires(self, grace: int) -> None:
        cluster = Cluster()
        limited = {"accounts": {"build": {"enforce_max_runtime": True}}, "scheduler": {"preemption_grace": grace}}
        apply_rules(cluster.harness.ports, RULES | limited)
        cluster.lease(account="build", max_runtime=60)
        leased_at = cluster.row().leased_at
        assert leased_at is not None
        assert json.loads(cluster.report("take", nonce=NONCE)["command"])["deadline"] == leased_at + 60
        assert cluster.report("started")["ok"]
        cluster.harness.now += 61
        cluster.harness.tick()
        row = cluster.finish("revoked", signal=15)
        assert (row.phase, row.reason) == ("expired", "limit")
        assert row.run == RunState("ended", signal=15, why="limit")
        assert [each.why for each in cluster.harness.store.find_executions("r1")] == ["limit"]

    def test_a_lost_command_fails_if_an_interruption_has_to(self) -> None:
        cluster = Cluster().lease(on_interruption="fail", restart_policy="on_failure").begin()
        row = cluster.finish("lost")
        assert (row.phase, row.reason, row.run) == ("failed", "run_lost", RunState("ended", why="lost"))

    def test_the_restart_policy_runs_a_failed_command_again_under_a_new_token(self, store: Store) -> None:
        cluster = Cluster(store).lease(restart_policy="on_failure").begin()
        first = cluster.row().token
        cluster.finish(exit_code=1)
        cluster.harness.settle(120)
        row = cluster.row()
        assert (row.phase, row.run) == ("leased", RunState("waiting"))
        assert row.token > first
        assert cluster.report("take")["ok"]
        assert [run.token for run in store.find_executions("r1")] == [first, row.token]

    def test_a_repeated_report_changes_nothing(self, store: Store) -> None:
        cluster = Cluster(store).lease().begin()
        row = cluster.finish(exit_code=3)
        events = len(cluster.harness.events)
        assert cluster.finish(exit_code=0) == row
        assert cluster.report("started")["ok"]
        assert cluster.report("output", tail="later", bytes=99)["ok"]
        assert store.find_executions("r1")[0].tail == ""
        assert (cluster.row(), len(cluster.harness.events)) == (row, events)

    def test_output_is_kept_while_it_runs_and_an_older_report_changes_nothing(self, store: Store) -> None:
        cluster = Cluster(store).lease().begin()
        version = cluster.row().version
        assert cluster.report("output", tail="two", bytes=6)["ok"]
        assert cluster.report("output", tail="one", bytes=3)["ok"]
        (run,) = store.find_executions("r1")
        assert (run.tail, run.bytes, cluster.row().version) == ("two", 6, version)

    def test_a_new_agent_of_the_machine_reports_what_became_of_the_command_of_its_predecessor(self) -> None:
        cluster = Cluster().lease().begin()
        row = cluster.harness.slot("lab-1")
        cluster.harness.put(msgspec.structs.replace(row, run="run-2"))
        assert fault(cluster.report("exited", why="exited", exit_code=0)) == ("run", "conflict")
        assert cluster.finish(run="run-2").phase == "released"

    def test_a_report_after_the_end_of_the_reservation_is_recorded(self, store: Store) -> None:
        cluster = Cluster(store).lease().begin()
        assert cluster.ask(SHOP, "cancel", reservation="r1")["ok"]
        assert cluster.row().run == RunState("ended")
        row = cluster.finish("signal", signal=15)
        assert (row.phase, row.run) == ("cancelled", RunState("ended", signal=15, why="signal"))
        assert store.find_executions("r1")[0].why == "signal"

    def test_a_report_about_an_earlier_lease_leaves_the_present_one(self, store: Store) -> None:
        cluster = Cluster(store).lease(restart_policy="on_failure").begin()
        old = cluster.row().token
        cluster.finish("lost")
        cluster.harness.tick()
        cluster.begin()
        assert cluster.report("exited", token=old, why="exited", exit_code=0)["ok"]
        assert (cluster.row().phase, cluster.row().run) == ("leased", RunState("running"))

    def test_a_revoked_command_gives_its_leases_back(self, store: Store) -> None:
        cluster = Cluster(store).lease().begin()
        revoke(cluster)
        row = cluster.finish("revoked", signal=15)
        assert (row.phase, row.reason, row.run) == ("pending", "preempted", RunState("waiting"))

    def test_an_outcome_is_counted(self) -> None:
        cluster = Cluster().lease().begin()
        cluster.finish(exit_code=3)
        cluster.finish(exit_code=3)
        assert cluster.harness.meter.counts["leasehold_command_outcomes_total", (("why", "exited"),)] == 1


GANG: Final[dict[str, Any]] = {
    "components": [
        {"name": "core", "count": 2, "resources": {"cpus": 3}},
        {"name": "helper", "kind": "elastic", "resources": {"cpus": 3}},
    ]
}


class TestGangs:
    @pytest.fixture
    def cluster(self, store: Store) -> Cluster:
        cluster = Cluster(store, hosts=3).lease(**GANG)
        cluster.harness.tick()
        assert {each.component for each in cluster.row().leases} == {"core.0", "core.1", "helper"}
        for name in ("core.0", "core.1", "helper"):
            cluster.begin(component=name)
        return cluster

    def test_it_is_released_when_all_essential_instances_have_exited(self, cluster: Cluster) -> None:
        row = cluster.finish(component="core.1")
        assert (row.phase, row.run) == ("leased", RunState("running", 0, None, "exited"))
        row = cluster.finish(component="core.0")
        assert (row.phase, row.run) == ("released", RunState("ended", 0, None, "exited"))

    def test_the_first_failure_fails_it(self, cluster: Cluster) -> None:
        cluster.finish(component="core.1")
        row = cluster.finish(component="core.0", exit_code=7)
        assert (row.phase, row.reason, row.leases) == ("failed", "exited", ())
        assert row.run == RunState("ended", 7, None, "exited")
        # The other agents end their processes and report it: the outcome stays.
        assert cluster.finish("signal", component="helper", signal=15).run == row.run

    def test_an_elastic_instance_that_is_done_is_not_granted_again(self, cluster: Cluster) -> None:
        row = cluster.finish(component="helper")
        assert (row.phase, {each.component for each in row.leases}) == ("leased", {"core.0", "core.1"})
        cluster.harness.settle(20)
        assert {each.component for each in cluster.row().leases} == {"core.0", "core.1"}

    def test_an_elastic_instance_that_failed_may_be_granted_again(self, cluster: Cluster) -> None:
        row = cluster.finish(component="helper", exit_code=1)
        assert (row.phase, row.component_restarts) == ("leased", {"helper": 1})
        cluster.harness.tick()
        assert {each.component for each in cluster.row().leases} == {"core.0", "core.1", "helper"}
        assert cluster.report("take", component="helper")["ok"]

    def test_revoked_leases_are_given_back_when_the_last_command_has_ended(self, cluster: Cluster) -> None:
        revoke(cluster)
        assert cluster.finish("revoked", component="core.0", signal=15).phase == "revoking"
        assert cluster.finish("revoked", component="core.1", signal=15).phase == "pending"


class TestRenewal:
    def test_a_host_renews_without_the_key(self, store: Store) -> None:
        key_hash = hashlib.sha256(b"k" * 32).hexdigest()
        cluster = Cluster(store).lease(key_hash=key_hash).begin()
        token = cluster.row().token
        answer = cluster.ask(HOSTS["lab-1"], "renew", reservation="r1", token=token)
        assert answer["ok"]
        assert 0 < answer["ttl"] <= 600

    def test_a_host_renews_with_the_token_of_its_own_lease(self) -> None:
        cluster = Cluster(hosts=3).lease(**GANG)
        cluster.harness.tick()
        leases = {each.component: each for each in cluster.row().leases}
        helper, core = leases["helper"], leases["core.0"]
        assert cluster.ask(HOSTS[helper.slot], "renew", reservation="r1", token=helper.token)["ok"]
        answer = cluster.ask(HOSTS[core.slot], "renew", reservation="r1", token=helper.token)
        assert fault(answer) == ("token", "conflict")

    @pytest.mark.parametrize("verb", ["take", "renew"])
    def test_a_host_whose_requests_move_its_deadlines_is_not_offline(self, verb: str) -> None:
        """Its heartbeats are lost, and its requests are answered: it would not end its commands before the slot is
        offline.
        """
        cluster = Cluster().lease()
        (lease,) = cluster.row().leases
        for _ in range(3):
            _pass_time(cluster, 20)
            if verb == "take":
                assert cluster.report("take")["ok"]
            else:
                assert cluster.ask(HOSTS["lab-1"], "renew", reservation="r1", token=lease.token)["ok"]
            _pass_time(cluster, 1)
            assert cluster.row().phase == "leased"
        # The renewals of others are no signs of life of the host.
        _pass_time(cluster, 20)
        assert cluster.ask(SHOP, "renew", reservation="r1", token=lease.token)["ok"]
        _pass_time(cluster, 20)
        assert cluster.row().phase != "leased"

    def test_no_other_host_renews_and_none_without_a_command(self) -> None:
        cluster = Cluster(hosts=2).lease()
        cluster.ask(SHOP, "submit", id="bare", pool="lab")
        cluster.harness.tick()
        token = cluster.row().token
        answer = cluster.ask(HOSTS["lab-2"], "renew", reservation="r1", token=token)
        assert fault(answer) == ("reservation", "unknown")
        bare = cluster.row("bare")
        host = HOSTS[bare.leases[0].slot]
        assert fault(cluster.ask(host, "renew", reservation="bare", token=bare.token)) == ("reservation", "unknown")


def _pass_time(cluster: Cluster, seconds: float) -> None:
    end = cluster.harness.now + seconds
    while cluster.harness.now < end:
        cluster.harness.now += cluster.harness.leader.interval
        cluster.harness.tick()


class TestTogether:
    """Requests of several hosts in one transaction."""

    @settings(max_examples=16 * TIMES)
    @given(
        batches=st.lists(
            st.lists(
                st.tuples(
                    st.sampled_from(("take", "take", "started", "output", "exited")),
                    st.sampled_from(("r1", "r2", "r3", "gang")),
                    st.sampled_from(("exited", "lost", "out_of_memory")),
                    st.sampled_from(("run-1", "run-1", "run-1", "run-2")),
                ),
                max_size=8,
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_they_have_the_answers_and_effects_of_single_ones(self, batches: list[list[tuple[str, ...]]]) -> None:
        clusters = [Cluster(hosts=3), Cluster(hosts=3)]
        parts = [{"name": "node", "count": 2, "resources": {"cpus": 1}}]
        for cluster in clusters:
            for name in ("r1", "r2", "r3"):
                cluster.lease(name, resources={"cpus": 2})
            cluster.lease("gang", components=parts)
        numbers = count(1)
        for batch in batches:
            wanted = [(step, next(numbers)) for step in batch]
            found = []
            for cluster, is_joint in zip(clusters, (True, False), strict=True):
                messages = [_make_message(cluster, *step, number=number) for step, number in wanted]
                ports = cluster.harness.ports
                joint = accept_gathered(ports, messages) if is_joint else None
                answers = joint or [
                    accept(ports, each.verb, each.document, principal=each.principal) for each in messages
                ]
                found.append([_without_signature(each) for each in answers])
                found.append([cluster.row(name) for name in ("r1", "r2", "r3", "gang")])
            assert found[:2] == found[2:]
        runs = [[*cluster.harness.store.find_executions(name)] for cluster in clusters for name in ("r1", "gang")]
        assert runs[:2] == runs[2:]

    def test_those_of_different_hosts_are_one_transaction(self) -> None:
        cluster = Cluster(hosts=3)
        for number in range(3):
            cluster.lease(f"r{number}", resources={"cpus": 4})
        begin, begun = cluster.harness.store.transaction, list[str]()

        def transaction() -> Any:
            begun.append("transaction")
            return begin()

        cluster.harness.store.transaction = transaction  # type: ignore[method-assign]
        messages = [_make_message(cluster, "take", f"r{n}", "exited", "run-1", number=n) for n in range(3)]
        answers = accept_gathered(cluster.harness.ports, messages)
        assert [isinstance(each, dict) and each["ok"] for each in answers] == [True] * 3
        assert len(begun) == 1


def _make_message(cluster: Cluster, verb: str, name: str, why: str, run: str, *, number: int) -> Message:
    """A message of the host that has the first lease of a reservation, or had it."""
    leases = cluster.row(name).leases
    known = next(iter(cluster.harness.store.find_executions(name)), None)
    found = leases[0] if leases else known
    slot, component, token = ("lab-1", "main", 1) if found is None else (found.slot, found.component, found.token)
    document: dict[str, Any] = {"slot": slot, "machine": f"m-{slot}", "run": run}
    document |= {"reservation": name, "component": component, "token": token, "request": f"q{number}"}
    more: dict[str, dict[str, Any]] = {
        "take": {"nonce": NONCE},
        "output": {"tail": f"line {number}", "bytes": number},
        "exited": {"why": why} | ({"exit_code": 0} if why == "exited" else {}),
    }
    return Message(verb, document | more.get(verb, {}), HOSTS[slot])


def _without_signature(answer: Any) -> Any:
    """Return an answer without what depends on the identity of the cluster."""
    return (
        {name: value for name, value in answer.items() if name != "signature"} if isinstance(answer, dict) else answer
    )
