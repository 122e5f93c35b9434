"""The rules of `leasehold doctor`: what was seen goes in, findings come out. No I/O and no clock.

What fails, and why it has to be so: docs/how-to/operations.md, "The doctor" and "Celery's settings".
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from leasehold.common.clock import ProcessOffset
from leasehold.doctor.findings import CLOCK_SECONDS, Finding, failure, ok, skipped, warning
from scheduler.ports import ClusterRow, DatabaseWentBackError, Remembered

LEAST_REDIS: Final = (6, 2)
LATE_INTERVALS: Final = 3
_SERVICES: Final = "NTP: chrony, the Amazon Time Sync Service"
_HARMLESS: Final = "Leases and messages do not depend on it; dates in logs and the verification of certificates do."
_LOOPBACK: Final = {"127.0.0.1", "::1", "-::1", "localhost"}


def judge_redis_version(check: str, info: Mapping[str, Any]) -> Finding:
    """Redis 6.2 or newer, or any Valkey: it reports the version of Redis that it is compatible with, 7.2."""
    if "valkey_version" in info:
        return ok(check, f"Valkey {info['valkey_version']}")
    text = str(info.get("redis_version", "unknown"))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if numbers < LEAST_REDIS:
        return failure(check, f"Redis {text}", "Upgrade to Redis 6.2 or newer.")
    return ok(check, f"Redis {text}")


def judge_membership(row: ClusterRow, remembered: Remembered) -> Finding:
    """Database and Redis belong to one cluster, and the database has not gone back behind what Redis has seen."""
    if remembered.identity not in {None, row.identity}:
        text = f"Redis belongs to cluster {remembered.identity}, the database to cluster {row.identity}"
        remedy = (
            "Correct broker.url, view.url or database.url; give each cluster a Redis, or a view.prefix and a broker"
        )
        return failure("cluster", text, f"{remedy} database, of its own. No process starts until then.")
    if remembered.is_restoring:
        text = f"the database of cluster {row.identity} is being restored"
        return failure("cluster", text, "Wait for `leasehold restore`, or run it again if it was cut off.")
    try:
        row.refuse_older(remembered.term, remembered.token, "Redis")
    except DatabaseWentBackError as error:
        text, _, _ = str(error).rpartition(": run ")
        remedy = "Run `leasehold restore --in-place` (docs/how-to/operations.md): nothing is decided until then."
        return failure("cluster", text, remedy)
    return ok("cluster", f"database and Redis belong to {row.identity}")


def judge_memory(check: str, info: Mapping[str, Any]) -> Finding:
    """A Redis that evicts throws messages and the leader lock away: `noeviction`."""
    policy, most = str(info.get("maxmemory_policy", "unknown")), int(info.get("maxmemory", 0))
    limit = f"maxmemory {most}" if most else "no maxmemory"
    if policy == "noeviction":
        return ok(check, f"maxmemory-policy noeviction, {limit}")
    remedy = "Set maxmemory-policy noeviction: a Redis that evicts throws away messages, the view and the leader lock."
    return failure(check, f"maxmemory-policy {policy}, {limit}", remedy)


def judge_persistence(check: str, info: Mapping[str, Any]) -> Finding:
    """Losing Redis loses nothing, so either will do; writing that fails will not: Redis then refuses writes."""
    if info.get("rdb_last_bgsave_status", "ok") != "ok" or info.get("aof_last_write_status", "ok") != "ok":
        remedy = "Look at Redis' log and its disk: it refuses writes while it cannot save."
        return failure(check, "the last save to disk failed", remedy)
    if info.get("aof_enabled"):
        return ok(check, "append-only file: a restart keeps the messages")
    return ok(check, "no append-only file: a restart costs delays and loses nothing (what counts is in the database)")


def judge_unread(check: str, user: str, command: str, question: str) -> Finding:
    """Redis refuses this user the command that the check needs: nothing is known, so the check is no success."""
    remedy = f"Ask an administrator: {question}? Or let this user use {command}."
    return warning(check, f"could not be read as this user: {user} may not use {command}", remedy)


def judge_access(check: str, user: str, bind: str | None, *, needs_none: bool) -> Finding:
    """Redis must require a password from every client that can reach it. `needs_none`: it serves a connection without
    one; `bind`: the addresses
    that it listens on, None where CONFIG is refused.
    """
    if not needs_none:
        return ok(check, f"as user {user}; nobody is served without a password")
    remedy = "Give each role a user of its own (compose/redis/users.acl), and let nobody but the hosts reach the port."
    if bind is None:
        unread = f"where it listens could not be read as this user: {user} may not use CONFIG"
        ask = "Or ask an administrator: does it listen on loopback only (`CONFIG GET bind`)?"
        return warning(check, f"whoever reaches it needs no password, and {unread}", f"{remedy} {ask}")
    bound = set(bind.split())
    if bound and bound <= _LOOPBACK:
        return ok(check, "without a password, on loopback only")
    return warning(check, "the default user needs no password, and listens beyond loopback", remedy)


def judge_clock(check: str, ahead: float, uncertain: float, whose: str) -> Finding:
    """`ahead`: by how many seconds the clock of a server is ahead of cluster time, give or take `uncertain`. Cluster
    time makes up for the difference, so nothing is decided by it.
    """
    text = f"{whose} clock is {_describe_offset(ahead)} cluster time"
    if abs(ahead) - uncertain > CLOCK_SECONDS:
        return warning(check, text, f"Let its host follow a time service ({_SERVICES}). {_HARMLESS}")
    return ok(check, text)


def judge_clocks(offsets: Sequence[ProcessOffset]) -> Finding:
    """The wall clocks of all processes and of this command, against cluster time."""
    off = [each for each in offsets if abs(each.seconds) > CLOCK_SECONDS]
    if not off:
        count = len(offsets)
        return ok("clocks", f"the wall clocks of {count} process{'es' if count != 1 else ''} agree with cluster time")
    text = "; ".join(
        f"{each.process} on {each.host}: the wall clock is {_describe_offset(each.seconds)} cluster time"
        for each in off
    )
    hosts = ", ".join(sorted({each.host for each in off}))
    return failure("clocks", text, f"Let {hosts} follow a time service ({_SERVICES}). {_HARMLESS}")


def _describe_offset(ahead: float) -> str:
    return f"{abs(ahead):.2f} s {'ahead of' if ahead >= 0 else 'behind'}"


def judge_queue(queue: str, waiting: int, seconds: float | None, patience: float) -> Finding:
    """`seconds`: how long the canary took, None when it was not answered within `patience`."""
    check = f"queue {queue}"
    messages = f"{waiting} message{'' if waiting == 1 else 's'} waiting"
    if seconds is not None:
        return ok(check, f"answered in {seconds:.1f} s, {messages}")
    busy = " (or wait until it has worked through them)" if waiting > 1 else ""
    remedy = f"Start a worker: python -m tasks.worker {queue}{busy}."
    return failure(check, f"nobody answered in {patience:g} s, {messages}", remedy)


def judge_ticks(age: float | None, interval: float, *, can_write: bool = True) -> Finding:
    """`age` of the last tick in seconds; None: there was none yet. `can_write`: False where the database takes no
    writes: a tick without a commit is none, however well beat and the workers run.
    """
    remedy = "Start a beat (python -m tasks.clock) and a worker of the queue ticks."
    if not can_write:
        remedy = "Mend the database first (database writes, above): a tick has to commit."
    if age is None:
        return failure("ticks", "there was no tick yet", remedy)
    if age > LATE_INTERVALS * interval:
        return failure("ticks", f"the last tick was {age:.0f} s ago; one is due every {interval:g} s", remedy)
    return ok("ticks", f"the last one {max(age, 0.0):.1f} s ago, one is due every {interval:g} s")


def judge_schema(current: str | None, head: str | None) -> Finding:
    """The database is at the revision of this program."""
    if current == head:
        return ok("schema", f"revision {current}")
    if current is None:
        return failure("schema", "the database has no tables", "Run `leasehold migrate`.")
    # Revisions are numbers with leading zeros.
    if head is None or current > head:
        seen = f"the database's schema is newer than this program (revision {current}, the program knows up to {head})"
        return failure("schema", seen, "Upgrade Leasehold on this host.")
    seen = f"the database's schema is older than this program (revision {current}, the program needs {head})"
    return failure("schema", seen, "Run `leasehold migrate`, then upgrade the hosts that run older versions.")


def judge_rules(version: int, applied: Mapping[str, Any], file: str | None, written: Mapping[str, Any]) -> Finding:
    """The rules in force are those of this host's file, if there is one."""
    if not version:
        return failure("rules", "no rules were ever applied", "Run `leasehold apply leasehold.toml`.")
    if file is None or not written:
        return ok("rules", f"version {version}; there are none in a file here to compare it with")
    if applied == written:
        return ok("rules", f"version {version}, as in {file}")
    different = sorted(key for key in {*applied, *written} if applied.get(key) != written.get(key))
    remedy = f"Run `leasehold apply {file}` if this file is right, else bring it up to date (`leasehold rules show`)."
    return warning("rules", f"version {version} differs from {file} in {', '.join(different)}", remedy)


def judge_celery(conf: Mapping[str, Any], celery: str, kombu: str) -> Finding:
    """The settings that keep tasks from being lost or repeated, as they came out here, and the versions that work with
    Redis (docs/how-to/operations.md, "Celery's settings").
    """
    if faults := [*_list_unsafe(conf)]:
        return failure("celery", "; ".join(faults), "Run the application as it is: tasks.app sets all of these.")
    if _numbers(celery) >= (5, 7):
        remedy = "Install celery 5.6.3: a worker of 5.7 ends when Redis goes away while it holds a message."
        return warning("celery", f"celery {celery}", remedy)
    if _numbers(kombu) < (5, 7):
        remedy = "Install kombu 5.7: with older ones a worker that reconnected may consume nothing."
        return warning("celery", f"kombu {kombu}", remedy)
    return ok("celery", f"celery {celery}, kombu {kombu}, safe settings")


def _list_unsafe(conf: Mapping[str, Any]) -> Iterator[str]:
    visible, hard = conf["broker_transport_options"].get("visibility_timeout", 3600), conf["task_time_limit"]
    if hard is None or visible <= 2 * hard:
        yield f"visibility_timeout {visible} is not above twice task_time_limit ({hard}): slow tasks would run twice"
    if list(conf["accept_content"]) != ["json"] or conf["task_serializer"] != "json":
        yield "something else than JSON is accepted: a message could carry code"
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
    """Flower shows what tasks are about and can stop workers: it needs a password, except in `leasehold up`."""
    if has_password:
        return ok("flower", "asks for a password")
    if on_loopback and is_local_stack:
        return ok("flower", "without a password, on loopback, in the local stack")
    # Most hosts and containers run no Flower, and one without a password cannot start.
    return skipped("flower", 'flower.basic_auth ("user:password") is not set here; Flower does not start without it')


def judge_permission(check: str, error: str | None, policy: str) -> Finding:
    """`error`: the answer of EC2 to a call that only tries (DryRun); None: it would have carried it out."""
    if error is None:
        return ok(check, "permitted")
    return failure(check, error, f"Compare the role's policies with docs/iam/{policy}.json (docs/how-to/aws.md).")


def list_outcomes(findings: Sequence[Finding]) -> dict[str, int]:
    """How many findings there are of each outcome."""
    found = {"ok": 0, "warning": 0, "failure": 0, "skipped": 0}
    for finding in findings:
        found[finding.outcome] += 1
    return found
