"""Findings, the results of the checks of `leasehold doctor`, and its rules: each function turns observations into a
finding, without I/O and without a clock.

In each function `check` is the name of the check, which the finding repeats. docs/how-to/check-an-installation.md and
docs/reference/processes.md, "Celery's settings", give the reasons of each failure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Slot
from scheduler.operations.commands.slot_commands import TWO_LIVE
from scheduler.operations.machines.joining import JOIN_REFUSED
from scheduler.ports import ClusterRow, DatabaseWentBackError, Remembered
from scheduler.protocol.clock import ProcessOffset

Outcome = Literal["ok", "warning", "failure", "skipped"]

CLOCK_SECONDS: Final = 1.0
"""Largest difference in seconds between a clock and cluster time that is no fault (docs/how-to/aws.md, "The hosts")."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check. `check`: the name of the check; `outcome`: ok, warning, failure or skipped; `text`: what
    was observed; `remedy`: what to do about it, "" if nothing.
    """

    check: str
    outcome: Outcome
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """Return the finding of a check that found no fault. `text`: what was observed."""
    return Finding(check=check, outcome="ok", text=text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """Return the finding of a check on a part that works but is probably not configured as intended. `remedy`: what to
    do.
    """
    return Finding(check=check, outcome="warning", text=text, remedy=remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    """Return the finding of a check on a part that does not work, or that will fail. `remedy`: what to do."""
    return Finding(check=check, outcome="failure", text=text, remedy=remedy)


def skipped(check: str, why: str) -> Finding:
    """Return the finding of a check that did not run. `why`: the reason."""
    return Finding(check=check, outcome="skipped", text=why)


LEAST_REDIS: Final = (6, 2)
LATE_INTERVALS: Final = 3
_SERVICES: Final = "NTP: chrony, the Amazon Time Sync Service"
_HARMLESS: Final = "Leases and messages do not depend on it; dates in logs and the verification of certificates do."
MACHINES: Final = "machines"
HOSTS: Final = "hosts"
REFUSED_SECONDS: Final = 3600.0
_MOST_MACHINES: Final = 5
"""The most machines that one finding names."""
_LOOPBACK: Final = {"127.0.0.1", "::1", "-::1", "localhost"}


def judge_redis_version(check: str, info: Mapping[str, Any]) -> Finding:
    """Return the finding on the version of a server: a failure for a Redis older than 6.2, else ok. Every Valkey is ok,
    whichever version of Redis it reports. `info`: the answer to INFO.
    """
    if "valkey_version" in info:
        return ok(check, f"Valkey {info['valkey_version']}")
    text = str(info.get("redis_version", "unknown"))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if numbers < LEAST_REDIS:
        return failure(check, f"Redis {text}", "Upgrade to Redis 6.2 or newer.")
    return ok(check, f"Redis {text}")


def judge_membership(row: ClusterRow, remembered: Remembered) -> Finding:
    """Return the finding on the cluster to which database and Redis belong: a failure if they belong to different
    clusters, if a restore is not complete, or if the database is older than the record of the cluster in Redis
    (`remembered`); else ok. `row`: the record of the cluster in the database.
    """
    if remembered.identity not in {None, row.identity}:
        return failure(
            "cluster",
            f"Redis belongs to cluster {remembered.identity}, the database to cluster {row.identity}",
            "Correct broker.url, view.url or database.url. Each cluster needs its own Redis, or in a shared Redis its"
            " own view.prefix and its own database number in broker.url. No process starts until then.",
        )
    if remembered.is_restoring:
        return failure(
            "cluster",
            f"the database of cluster {row.identity} is being restored",
            "Wait for `leasehold restore`, or run it again if it was interrupted.",
        )
    try:
        row.refuse_older(remembered.term, remembered.token, "Redis")
    except DatabaseWentBackError as error:
        text, _, _ = str(error).rpartition(": run ")
        return failure(
            "cluster",
            text,
            "Run `leasehold restore --in-place` (docs/how-to/back-up-and-restore.md): no tick runs until then.",
        )
    return ok("cluster", f"database and Redis belong to {row.identity}")


def judge_memory(check: str, info: Mapping[str, Any]) -> Finding:
    """Return the finding on the eviction of keys: ok if maxmemory-policy is `noeviction`, else a failure, because a
    Redis that evicts keys deletes messages and the leader lock. `info`: the answer to INFO.
    """
    policy, most = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory", 0))
    limit = f"maxmemory {most}" if most else "no maxmemory"
    if policy == "noeviction":
        return ok(check, f"maxmemory-policy noeviction, {limit}")
    return failure(
        check,
        f"maxmemory-policy {policy}, {limit}",
        "Set maxmemory-policy noeviction: a Redis that evicts deletes messages, the view and the leader lock.",
    )


def judge_persistence(check: str, info: Mapping[str, Any]) -> Finding:
    """Return the finding on saves to disk: a failure if the last save failed, because Redis then refuses writes; else
    ok. `info`: the answer to INFO.

    Redis may run with or without an append-only file: if Redis loses its data, no lease or reservation is lost.
    """
    if info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
        return failure(
            check,
            "the last save to disk failed",
            "Look for the cause in Redis' log and on its disk: Redis refuses writes while it cannot save.",
        )
    if info.get("aof_enabled"):
        return ok(check, "append-only file: a restart keeps the messages")
    return ok(check, "no append-only file: a restart costs delays only (leases and requests are in the database)")


def judge_unread(check: str, user: str, command: str, question: str) -> Finding:
    """Return a warning: Redis refuses the user `user` the command `command`, which the check needs. `question`: what an
    administrator has to find out in place of the check.
    """
    return warning(
        check,
        f"could not be read as this user: {user} may not use {command}",
        f"Ask an administrator: {question}? Or let this user use {command}.",
    )


def judge_access(check: str, user: str, bind: str | None, *, needs_none: bool) -> Finding:
    """Return the finding on passwords: a warning if Redis serves clients without a password and may listen on other
    addresses than loopback, else ok.

    `user`: the Redis user of this command. `needs_none`: Redis serves a connection without a password. `bind`: the
    addresses on which Redis listens, separated by spaces; None if this user may not read them.
    """
    if not needs_none:
        return ok(check, f"as user {user}; no client is served without a password")
    remedy = (
        "Give each role its own user (compose/redis/users.acl), and let only the hosts of the cluster reach the port."
    )
    if bind is None:
        unread = f"its addresses could not be read as this user: {user} may not use CONFIG"
        remedy += " Or ask an administrator: does it listen on loopback only (`CONFIG GET bind`)?"
        return warning(check, f"clients need no password, and {unread}", remedy)
    bound = set(bind.split())
    if bound and bound <= _LOOPBACK:
        return ok(check, "clients need no password; it listens on loopback only")
    return warning(check, "clients need no password, and the server listens on other addresses than loopback", remedy)


def judge_clock(check: str, ahead: float, uncertain: float, whose: str) -> Finding:
    """Return the finding on the clock of a server: a warning if it differs from cluster time by more than a second,
    else ok.

    The difference is no failure, because cluster time corrects it. `ahead`: seconds by which the clock is ahead, with
    an error of at most `uncertain` seconds. `whose`: the words that stand before "clock" in the text of the finding,
    like "its".
    """
    text = f"{whose} clock is {_describe_offset(ahead)} cluster time"
    if abs(ahead) - uncertain > CLOCK_SECONDS:
        return warning(check, text, f"Let its host follow a time service ({_SERVICES}). {_HARMLESS}")
    return ok(check, text)


def judge_clocks(offsets: Sequence[ProcessOffset]) -> Finding:
    """Return the finding on the wall clocks of processes: a failure if the clock of a process differs from cluster time
    by more than a second, else ok.
    """
    off = [each for each in offsets if abs(each.seconds) > CLOCK_SECONDS]
    if not off:
        count = len(offsets)
        what = f"the wall clocks of {count} process{'es' if count != 1 else ''}, this one included,"
        return ok("clocks", f"{what} agree with cluster time")
    text = "; ".join(
        f"{each.process} on {each.host}: the wall clock is {_describe_offset(each.seconds)} cluster time"
        for each in off
    )
    hosts = ", ".join(sorted({each.host for each in off}))
    return failure("clocks", text, f"Let {hosts} follow a time service ({_SERVICES}). {_HARMLESS}")


def _describe_offset(ahead: float) -> str:
    return f"{abs(ahead):.2f} s {'ahead of' if ahead >= 0 else 'behind'}"


def judge_queue(queue: str, waiting: int, seconds: float | None, patience: float) -> Finding:
    """Return the finding on the workers of a queue: ok if a worker answered the canary (a test message), else a
    failure. `seconds`: time until the answer; None: no answer came within `patience` seconds. `waiting`: number of
    messages in the queue.
    """
    check = f"queue {queue}"
    messages = f"{waiting} message{'' if waiting == 1 else 's'} waiting"
    if seconds is not None:
        return ok(check, f"answered in {seconds:.1f} s, {messages}")
    busy = " (or wait until the running one has processed the messages)" if waiting > 1 else ""
    return failure(
        check,
        f"no worker answered in {patience:g} s, {messages}",
        f"Start a worker: python -m tasks.worker {queue}{busy}.",
    )


def judge_ticks(age: float | None, interval: float, *, can_write: bool = True) -> Finding:
    """Return the finding on the age of the last tick: a failure if there was no tick yet, or if the last tick is more
    than three intervals old; else ok.

    `age`: seconds since the last tick; None: there was no tick yet. `interval`: seconds between two ticks. `can_write`:
    False if the database cannot be used or accepts no writes; the remedy of a failure is then to repair it first.
    """
    start = "Start a beat (python -m tasks.clock) and a worker of the queue ticks."
    remedy = start if can_write else "Repair the database first (above): a tick must commit."
    if age is None:
        return failure("ticks", "there was no tick yet", remedy)
    if age > LATE_INTERVALS * interval:
        return failure("ticks", f"the last tick was {age:.0f} s ago; one is due every {interval:g} s", remedy)
    return ok("ticks", f"the last one {max(age, 0.0):.1f} s ago, one is due every {interval:g} s")


def judge_schema(current: str | None, head: str | None) -> Finding:
    """Return the finding on the schema of the database: ok if its revision `current` is the revision `head`, which this
    program needs; else a failure. `current` None: the database has no tables.
    """
    if current == head:
        return ok("schema", f"revision {current}")
    if current is None:
        return failure("schema", "the database has no tables", "Run `leasehold migrate`.")
    # Revisions are numbers with leading zeros, so their texts can be compared.
    if head is None or current > head:
        return failure(
            "schema",
            f"the database's schema is newer than this program (revision {current}, the program knows up to {head})",
            "Upgrade Leasehold on this host.",
        )
    return failure(
        "schema",
        f"the database's schema is older than this program (revision {current}, the program needs {head})",
        "Run `leasehold migrate`, then upgrade the hosts that run older versions.",
    )


def judge_rules(version: int, applied: Mapping[str, Any], file: str | None, written: Mapping[str, Any]) -> Finding:
    """Return the finding on the rules: a failure if no rules are in force, a warning if the configuration file of this
    host has other rules, else ok. `version`: the number of the rules in force, 0 if none were ever applied. `applied`:
    the rules in force. `file`: the path of this host's file; None: there is no file. `written`: the rules in the file.
    """
    if not version:
        return failure("rules", "no rules were ever applied", "Run `leasehold apply leasehold.toml`.")
    if file is None or not written:
        return ok("rules", f"version {version}; no file on this host contains rules to compare with")
    if applied == written:
        return ok("rules", f"version {version}, as in {file}")
    different = sorted(key for key in {*applied, *written} if applied.get(key) != written.get(key))
    return warning(
        "rules",
        f"version {version} differs from {file} in {', '.join(different)}",
        f"Run `leasehold apply {file}` if this file is right, else update the file (`leasehold rules show`).",
    )


def judge_machines(slots: Sequence[Slot], holds: Sequence[Hold]) -> Finding:
    """Return the finding on the machines that EC2 refuses to end or to stop: a failure if there are any, because they
    go on costing money; else ok. `holds`: all launch back-offs. Those that count the machines without a slot have what
    EC2 answered to the end of such a machine.
    """
    kept = [
        f"{slot.id} ({slot.instance_id}): {slot.refusal}"
        for slot in slots
        if slot.refusal and (slot.state == "terminating" or slot.power == "stop")
    ]
    kept += [
        f"machines of pool {hold.pool} without a slot: {hold.words}"
        for hold in holds
        if hold.kind == "strangers" and hold.words
    ]
    if not kept:
        return ok(MACHINES, "no machine that EC2 refuses to end or stop")
    more = f"; and {len(kept) - _MOST_MACHINES} more" if len(kept) > _MOST_MACHINES else ""
    return failure(
        MACHINES,
        "EC2 refuses to end or stop " + "; ".join(kept[:_MOST_MACHINES]) + more,
        "Remove the termination or stop protection of these machines (OperationNotPermitted), or permit the terminate"
        " worker to end and stop them (UnauthorizedOperation: docs/iam/terminate.json and stop.json). The calls are"
        " repeated.",
    )


def judge_hosts(refused: Sequence[Event], now: float) -> Finding:
    """Return the finding on the identities of hosts: a warning if another live agent with the identity of a host was
    refused in the last hour, or another sender of the proof or token of a machine; else ok. `refused`: the events of
    refused registrations and joins. `now`: cluster time.
    """
    recent = [each for each in refused if each.at > now - REFUSED_SECONDS]
    if copied := {each.slot: each for each in recent if each.name == JOIN_REFUSED}:
        return warning(
            HOSTS,
            f"a proof or token was used twice for {_name_hosts(copied)}",
            "Unless its agent lost the answer to its request or the folder of its state, another program has the key of"
            " this slot: remove the principal of the slot (`leasehold principals remove SLOT`) and drain the slot. Give"
            " the pool an instance profile.",
        )
    clones = {each.slot: each for each in recent if each.detail.get("reason") == TWO_LIVE}
    if not clones:
        return ok(HOSTS, "no live agent with the identity of another one in the last hour")
    return warning(
        HOSTS,
        f"two live agents have the identity of {_name_hosts(clones)}",
        "Give each machine its own /etc/machine-id (a cloned image must not contain one), or its own --machine. Run one"
        " agent for a slot. The agent that registered first serves the slot.",
    )


def _name_hosts(events: Mapping[str | None, Event]) -> str:
    names = [f"{slot} (machine {each.detail.get('machine')})" for slot, each in sorted(events.items(), key=str)]
    more = f"; and {len(names) - _MOST_MACHINES} more" if len(names) > _MOST_MACHINES else ""
    return "; ".join(names[:_MOST_MACHINES]) + more


def judge_celery(conf: Mapping[str, Any], celery: str, kombu: str) -> Finding:
    """Return the finding on Celery: a failure if a setting of Celery could lose or repeat tasks, else a warning if the
    installed version of Celery or kombu is known to fail with Redis, else ok. `conf`: Celery's settings. `celery`,
    `kombu`: the installed versions, like "5.6.3".

    docs/reference/processes.md, "Celery's settings", gives the reasons.
    """
    if faults := [*_list_unsafe(conf)]:
        return failure("celery", "; ".join(faults), "Start the workers with tasks.app as it is: it has safe settings.")
    if _numbers(celery) >= (5, 7):
        return warning(
            "celery",
            f"celery {celery} is installed",
            "Install celery 5.6.3: a worker of celery 5.7 ends if Redis goes away while it holds a message.",
        )
    if _numbers(kombu) < (5, 7):
        return warning(
            "celery",
            f"kombu {kombu} is installed",
            "Install kombu 5.7: with an older version a worker that reconnected may consume no messages.",
        )
    return ok("celery", f"celery {celery}, kombu {kombu}, safe settings")


def _list_unsafe(conf: Mapping[str, Any]) -> Iterator[str]:
    visible, hard = conf["broker_transport_options"].get("visibility_timeout", 3600), conf["task_time_limit"]
    if hard is None or visible <= 2 * hard:
        yield f"visibility_timeout {visible} is not above twice task_time_limit ({hard}): slow tasks would run twice"
    if list(conf["accept_content"]) != ["json"] or conf["task_serializer"] != "json":
        yield "other formats than JSON are accepted: a message could contain code"
    for name, wanted in (
        ("task_acks_late", True),
        ("task_reject_on_worker_lost", False),
        ("task_create_missing_queues", False),
        ("worker_prefetch_multiplier", 1),
        ("result_backend", None),
    ):
        if conf[name] != wanted:
            yield f"{name} is {conf[name]!r}, not {wanted!r}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def judge_flower(*, has_password: bool, on_loopback: bool, is_local_stack: bool) -> Finding:
    """Return the finding on the access to Flower, which shows tasks and can stop workers. It is ok if Flower has a
    password, or if Flower belongs to a local stack and listens on loopback. Else it is skipped, because Flower does not
    start then.
    """
    if has_password:
        return ok("flower", "requires a password")
    if on_loopback and is_local_stack:
        return ok("flower", "without a password, on loopback, in the local stack")
    # No failure: most hosts run no Flower, and Flower does not start without a password.
    return skipped("flower", 'flower.basic_auth ("user:password") is not set here; Flower does not start without it')


def judge_console(*, refusal: str | None, has_way_in: bool, trusts_loopback: bool) -> Finding:
    """Return the finding on the console: a failure if the console would refuse to start (`refusal`: the reason), a
    warning if no caller can log in, or if every user of this host can act as any principal, because the trusted reverse
    proxy is at a loopback address; else ok.
    """
    if refusal is not None:
        return failure("console", refusal, "change the setting")
    if not has_way_in:
        return warning(
            "console",
            "console.host is no loopback address, and no caller can log in",
            "add a principal with `leasehold principals add NAME --role operator`",
        )
    if trusts_loopback:
        return warning(
            "console",
            "console.trusted_proxies has a loopback address: every user of this host can act as any principal",
            "let the reverse proxy connect from an address that only it has",
        )
    return ok("console", "serves only known callers")


def list_outcomes(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings of each outcome: ok, warning, failure, skipped."""
    outcomes = [each.outcome for each in findings]
    return {name: outcomes.count(name) for name in get_args(Outcome)}
