"""The race between a tick and a change of the rules, as two processes of the operating system on PostgreSQL."""

from collections import Counter
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection

from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import carry_out, decide
from scheduler.store.opening import open_store
from tests.operations.harness import Harness
from tests.operations.quota import QuotaHarness, a_quota

HOSTS = 6
LEAST, MOST = 24, 400
"""Rounds of the race: at least, and at most until each order was seen often enough."""
OFTEN = 3
WAIT_SECONDS = 60


def tick_until_closed(url: str, wire: Connection) -> None:
    """The process that ticks. For each number on `wire` it plans leases, reports this, reads the database this number
    of times and commits; then it reports how many decisions were outdated.
    """
    harness = QuotaHarness(HOSTS, store=open_store(url), accounts={"A": {}})
    ports, leader = harness.ports, harness.leader
    leader_term = take_leader_term(ports, leader)
    wire.send("ready")
    numbers, names = count(1), list[str]()
    while (reads := wire.recv()) is not None:
        for name in names:
            harness.ask("cancel", reservation=name)
        names = [f"r{next(numbers)}" for _ in range(HOSTS)]
        for name in names:
            harness.submit(name, account="A")
        ticked = decide(ports, leader, leader_term)
        wire.send("planned")
        for _ in range(reads):
            harness.store.rules_version()
        carry_out(ports, leader, leader_term, ticked)
        wire.send(ticked.outdated)


def test_no_lease_of_a_plan_is_written_after_another_process_applied_rules(postgresql_url: str) -> None:
    """The queue changes to and from `quota`, under which alone a lease pays. The change and the commit start together;
    the process that ticks gets more or less to do before its commit, so that either of them may come first.
    """
    processes = get_context("spawn")
    here, there = processes.Pipe()
    process = processes.Process(target=tick_until_closed, args=(postgresql_url, there), daemon=True)
    process.start()
    there.close()

    def hear() -> object:
        assert here.poll(WAIT_SECONDS), "the process that ticks does not answer"
        return here.recv()

    store = open_store(postgresql_url)
    try:
        assert hear() == "ready"
        rules = Harness(a_quota(accounts={"A": {}}), store=store).ports
        seen: Counter[tuple[str, bool]] = Counter()
        reads, number = {"fifo": 0, "quota": 0}, 0
        while number < LEAST or len(seen) < 4 or min(seen.values()) < OFTEN:
            assert number < MOST, f"one order of the race is missing: {seen}"
            queue = ("fifo", "quota")[number % 2]
            here.send(reads[queue])
            assert hear() == "planned"
            apply_rules(rules, a_quota(accounts={"A": {}}, queue=queue))
            outdated = hear()
            leased = store.find_reservations(phases=["leased"])
            pays = [lease.charged_at is not None for row in leased for lease in row.leases]
            assert pays == ([] if outdated else [queue == "quota"] * HOSTS)
            seen[queue, bool(outdated)] += 1
            reads[queue] = max(0, reads[queue] + (-1 if outdated else 1))
            number += 1
        here.send(None)
        process.join(WAIT_SECONDS)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
        store.close()
        here.close()
