"""The schema of the SQL database: columns for values that are searched or shown, JSON text for nested values.

A column has the name of the field that it holds. `info["path"]` of a column is the path to a nested field.
`info["fixed"]` marks a column whose value never changes after the insert.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Computed,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    false,
    literal_column,
)

from scheduler.model.transitions import ENDED

metadata: Final = MetaData()

_ENDED_PHASES: Final = ", ".join(repr(phase) for phase in sorted(ENDED))

_TEXT: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""The type of text columns. They are compared byte by byte, so that every database sorts them in the same order as
Python does.
"""

_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""The type of columns with whole numbers. On SQLite it is INTEGER, because SQLite assigns row numbers only to a column
of this type.
"""


def _text(name: str, *, null: bool = False, **info: object) -> Column[Any]:
    return Column(name, _TEXT, nullable=null, info=dict(info))


def _json(name: str, *, null: bool = False, **info: object) -> Column[Any]:
    """Return a column of JSON text. `info["json"]` marks that the text is decoded when it is read. `info["alike"]`
    marks that many rows have the same text, so that a text is decoded once.
    """
    return Column(name, _TEXT, nullable=null, info={"json": True, **info})


def _real(name: str, *, null: bool = False, **info: object) -> Column[Any]:
    return Column(name, Double, nullable=null, info=dict(info))


def _whole(name: str, **info: object) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, info=dict(info))


def _flag(name: str, **info: object) -> Column[Any]:
    return Column(name, Boolean, nullable=False, info=dict(info))


def _request_text(name: str, *, null: bool = True) -> Column[Any]:
    """Return a column that holds one text field of a reservation's request, so that the field can be searched or shown
    without decoding the request.
    """
    return _text(name, null=null, path=("request", name), fixed=True)


reservations: Final = Table(
    "reservations",
    metadata,
    Column("sequence", _NUMBER, primary_key=True, autoincrement=False, info={"fixed": True}),
    Column("id", _TEXT, nullable=False, unique=True),
    _whole("version"),
    _real("marked_at"),
    _text("phase"),
    _text("reason", null=True),
    _real("changed_at"),
    _request_text("system"),
    _request_text("pool"),
    _request_text("account"),
    _request_text("restart_policy", null=False),
    _real("priority"),
    _json("request", fixed=True, alike=True),
    _real("created_at", fixed=True),
    _real("expires_at", null=True),
    _real("leased_at", null=True),
    _real("confirmed_at", null=True),
    _real("failed_at", null=True),
    _real("restarted_at", null=True),
    _real("finished_at", null=True),
    _whole("restarts"),
    _whole("unconfirmed"),
    _whole("interruptions"),
    _whole("token"),
    _flag("suspended"),
    _json("declined", alike=True),
    _text("revoke_reason", null=True),
    _real("revoke_by", null=True),
    # The time of the last change of an ended reservation, NULL for others: an index finds ended ones by it.
    Column("ended_at", Double, Computed(f"CASE WHEN phase IN ({_ENDED_PHASES}) THEN changed_at END", persisted=True)),
    _json("component_restarts", null=True, alike=True),
    _text("principal", null=True, fixed=True),
    _text("key_hash", null=True, fixed=True),
    # NULL: stored by an older version; counted as one.
    Column("instances", BigInteger, nullable=True, info={"fixed": True}),
    # NULL: signed, stored by an older version, or of an unknown host.
    _text("sender", null=True, fixed=True),
    _real("planned_start", null=True),
    # The state of the command; NULL: the reservation has none.
    _json("run", null=True, alike=True),
)
Index("reservations_by_phase", reservations.c.phase, reservations.c.sequence)
Index("reservations_by_mark", reservations.c.marked_at, reservations.c.version)
Index(
    "reservations_ended",
    reservations.c.ended_at,
    sqlite_where=reservations.c.ended_at.is_not(None),
    postgresql_where=reservations.c.ended_at.is_not(None),
)
_PENDING: Final = reservations.c.phase == literal_column("'pending'")
_UNSIGNED: Final = and_(_PENDING, reservations.c.principal.is_(None))
_OF_ACCOUNT: Final = and_(_PENDING, reservations.c.account.is_not(None))
# These indexes alone count pending reservations, without reading rows.
Index(
    "reservations_pending_by_principal",
    reservations.c.principal,
    reservations.c.instances,
    sqlite_where=_PENDING,
    postgresql_where=_PENDING,
)
Index(
    "reservations_pending_by_sender",
    reservations.c.sender,
    reservations.c.instances,
    sqlite_where=_UNSIGNED,
    postgresql_where=_UNSIGNED,
)
Index(
    "reservations_pending_by_account",
    reservations.c.account,
    reservations.c.instances,
    sqlite_where=_OF_ACCOUNT,
    postgresql_where=_OF_ACCOUNT,
)


def _of_lease(column: Column[Any]) -> Column[Any]:
    column.info["path"] = ("lease", column.name)
    return column


leases: Final = Table(
    "leases",
    metadata,
    _text("reservation"),
    _of_lease(_text("component")),
    _whole("position"),
    _of_lease(_text("kind")),
    _of_lease(_text("slot")),
    _of_lease(_whole("epoch")),
    _of_lease(_whole("token")),
    _of_lease(_json("resources", alike=True)),
    _of_lease(_whole("level")),
    _of_lease(_json("cost", alike=True)),
    _of_lease(_real("assigned_at")),
    _of_lease(_real("confirmed_at", null=True)),
    _of_lease(_text("state")),
    _of_lease(_real("revoke_by", null=True)),
    _of_lease(_real("charged_at", null=True)),
    _of_lease(_real("weight")),
    _of_lease(_real("cores", null=True)),
    _of_lease(_text("revoke_reason", null=True)),
    PrimaryKeyConstraint("reservation", "component"),
    sqlite_with_rowid=False,
)
Index("leases_by_slot", leases.c.slot)

commands: Final = Table(
    "commands",
    metadata,
    Column("reservation", _TEXT, primary_key=True),
    # JSON text, which no query decodes.
    _text("document"),
    sqlite_with_rowid=False,
)
"""The table of the commands of reservations. Their arguments and environments are in no other table."""

executions: Final = Table(
    "executions",
    metadata,
    _text("reservation"),
    _whole("token"),
    _text("component"),
    _text("slot"),
    _text("machine"),
    _text("run"),
    _text("state"),
    _real("taken_at"),
    _real("started_at", null=True),
    _real("ended_at", null=True),
    Column("exit_code", BigInteger, nullable=True),
    Column("signal", BigInteger, nullable=True),
    _text("why", null=True),
    _text("error", null=True),
    _text("tail"),
    _whole("bytes"),
    PrimaryKeyConstraint("reservation", "token", "component"),
)
"""The table of the runs of commands, one for each lease on which a host took the command."""

slots: Final = Table(
    "slots",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _whole("version"),
    _real("marked_at"),
    _text("pool"),
    _text("state"),
    _whole("epoch"),
    _real("since"),
    _real("idle_since", null=True),
    _text("offering", null=True),
    _text("market", null=True),
    _real("price", null=True),
    _json("resources", null=True),
    _json("labels"),
    _text("machine", null=True),
    _flag("cordoned"),
    _real("last_seen", null=True),
    _real("interrupted_at", null=True),
    _real("interrupted_by", null=True),
    _text("drain_reason", null=True),
    _text("error", null=True),
    _text("launch_id", null=True),
    _text("launch_reason", null=True),
    _json("launch_request", null=True),
    _whole("attempts"),
    _real("not_before"),
    _real("sent_at"),
    _text("instance_id", null=True),
    _text("address", null=True),
    _text("instance_type", null=True),
    _text("zone", null=True),
    _whole("missed"),
    _whole("uses"),
    _whole("failed_probes"),
    _whole("unconfirmed"),
    _text("stranger", null=True),
    _real("noted_at", null=True),
    _whole("heartbeat"),
    _text("batch", null=True),
    _text("launched_for", null=True),
    _json("meter", null=True),
    _real("launched_at", null=True),
    _text("launch_digest", null=True),
    _text("power", null=True),
    _real("storage_price", null=True),
    _text("gang", null=True),
    _text("refusal", null=True),
    _text("subnet", null=True),
    _text("run", null=True),
)
Index("slots_by_state", slots.c.state)
Index("slots_by_pool", slots.c.pool, slots.c.state)
Index("slots_by_mark", slots.c.marked_at, slots.c.version)

holds: Final = Table(
    "holds",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _whole("version"),
    _real("marked_at"),
    _text("pool"),
    _text("kind"),
    _text("subject"),
    _real("refused_at"),
    _real("until"),
    _real("delay"),
    _whole("active"),
    _real("decided_at"),
    _whole("streak"),
    # A process of the version before inserts rows without them.
    Column("code", _TEXT, nullable=False, server_default=""),
    Column("message", _TEXT, nullable=False, server_default=""),
    Column("at_boot", Boolean, nullable=False, server_default=false()),
)
Index("holds_by_mark", holds.c.marked_at, holds.c.version)

accounts: Final = Table(
    "accounts",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _whole("version"),
    _real("marked_at"),
    _json("charge_rate"),
    _real("max_charge_seconds"),
    _whole("max_fanout"),
    _json("per_label_task_limits"),
    _flag("disable_free_tasks"),
    _text("description"),
    _json("balance"),
    _real("charged_at"),
    _json("due"),
    _flag("forgotten"),
    _whole("forgotten_upto"),
    Column("enforce_max_runtime", Boolean, nullable=False, server_default=false()),
)
Index("accounts_by_mark", accounts.c.marked_at, accounts.c.version)

run_times: Final = Table(
    "run_times",
    metadata,
    # A class of work: a JSON list, see scheduler/model/run_times.py.
    Column("id", _TEXT, primary_key=True),
    _whole("version"),
    _real("marked_at"),
    _json("seconds"),
    _json("ratios"),
    _real("released_at"),
)
Index("run_times_by_mark", run_times.c.marked_at, run_times.c.version)
Index("run_times_by_release", run_times.c.released_at, run_times.c.id)

run_time_cursor: Final = Table(
    "run_time_cursor",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=False),
    _real("ended_at"),
    _whole("sequence"),
)
"""The table with the last ended reservation that was counted into the run times: one row (id 1)."""

balances: Final = Table(
    "balances",
    metadata,
    _text("account"),
    _real("at"),
    _json("balance"),
    PrimaryKeyConstraint("account", "at"),
    sqlite_with_rowid=False,
)
Index("balances_by_time", balances.c.at)

events: Final = Table(
    "events",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=True),
    _real("at"),
    _text("name"),
    _text("cause"),
    _text("slot", null=True),
    _text("reservation", null=True),
    _json("detail", null=True),
    _text("principal", null=True),
    # Numbers are not used again after the newest events were pruned.
    sqlite_autoincrement=True,
)
Index("events_by_time", events.c.at)
Index(
    "events_by_reservation",
    events.c.reservation,
    events.c.number,
    sqlite_where=events.c.reservation.is_not(None),
    postgresql_where=events.c.reservation.is_not(None),
)
Index(
    "events_by_slot",
    events.c.slot,
    events.c.number,
    sqlite_where=events.c.slot.is_not(None),
    postgresql_where=events.c.slot.is_not(None),
)

requests: Final = Table(
    "requests",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _real("at"),
    _json("answer"),
    _text("principal", null=True),
)
Index("requests_by_time", requests.c.at)

outgoing: Final = Table(
    "outgoing",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _json("callback"),
    _json("payload"),
    _real("created_at"),
    _real("sent_at"),
    _whole("attempts"),
)
Index("outgoing_by_time", outgoing.c.created_at)

rules: Final = Table(
    "rules",
    metadata,
    Column("version", _NUMBER, primary_key=True, autoincrement=False),
    _json("document"),
    _real("applied_at"),
    # The ids of the images whose sources the document names. NULL: stored by an older version.
    _json("images", null=True),
)

leader: Final = Table(
    "leader",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=False),
    _whole("term"),
    _text("holder"),
    _real("ticked_at"),
)

counters: Final = Table(
    "counters",
    metadata,
    Column("name", _TEXT, primary_key=True),
    _whole("value"),
)

cluster: Final = Table(
    "cluster",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=False),
    # The id of the cluster: random, made with the table, never changed.
    _text("identity"),
    _real("created_at"),
    # Cluster time = the reference clock + this many seconds; `clock_changes` counts the changes of the offset.
    _real("clock_offset"),
    _whole("clock_changes"),
    # SQLite's reference clock: `base_time` was the time when the monotonic clock of the boot `boot` read
    # `base_monotonic`. NULL on PostgreSQL, whose own clock is the reference.
    _text("boot", null=True),
    _real("base_time", null=True),
    _real("base_monotonic", null=True),
    # The number of backups that were restored into this database.
    _whole("restores"),
    # Increased with every change of the table `principals`.
    _whole("principals_version"),
)
"""The table of the values that concern the whole cluster: one row (id 1), which one statement reads."""

principals: Final = Table(
    "principals",
    metadata,
    Column("name", _TEXT, primary_key=True),
    _text("role"),
    _json("accounts"),
    _text("key"),
    _real("created_at"),
    _text("previous_key", null=True),
    _real("previous_until", null=True),
    # A process of the version before inserts rows without it.
    Column("rights", _TEXT, nullable=False, server_default="[]", info={"json": True}),
    # The only machine for which the key of a host counts; NULL: any.
    _text("machine", null=True),
)
"""The table of the principals that may send messages. `previous_key` is also accepted until `previous_until` (cluster
time).
"""

ended_sessions: Final = Table(
    "ended_sessions",
    metadata,
    Column("id", _TEXT, primary_key=True),
    _real("until"),
)
"""The table of the sessions of the console that were logged out. From `until` (cluster time) on, the cookie of the
session is too old anyway.
"""

costs: Final = Table(
    "costs",
    metadata,
    Column("hour", Double, nullable=False),
    Column("pool", _TEXT, nullable=False),
    Column("offering", _TEXT, nullable=False),
    Column("account", _TEXT, nullable=False),
    Column("kind", _TEXT, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("dollars", Double, nullable=False),
    Column("unpriced", Double, nullable=False),
    PrimaryKeyConstraint("hour", "pool", "offering", "account", "kind"),
    sqlite_with_rowid=False,
)
"""The table of booked costs, with one row for each hour, pool, offering, account and kind."""

booked_machines: Final = Table(
    "booked_machines",
    metadata,
    # The id of the machine in EC2.
    Column("machine", _TEXT, primary_key=True),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
    sqlite_with_rowid=False,
)
"""The table of machines that have no slot, with the last interval whose costs were booked."""


_ALIKE: Final = {"json": True, "alike": True}
"""The `info` of a column of JSON text that many rows have in common, so that a text is decoded once."""

instance_types: Final = Table(
    "instance_types",
    metadata,
    Column("name", _TEXT, primary_key=True),
    Column("cpus", Double, nullable=False),
    Column("memory_mib", Double, nullable=False),
    Column("architectures", _TEXT, nullable=False, info=_ALIKE),
    Column("is_current", Boolean, nullable=False),
    Column("accelerators", BigInteger, nullable=False),
    Column("accelerator", _TEXT, nullable=True),
    Column("local_disk_gib", Double, nullable=False),
    Column("is_bare_metal", Boolean, nullable=False),
    Column("markets", _TEXT, nullable=False, info=_ALIKE),
    Column("zones", _TEXT, nullable=False, info=_ALIKE),
    Column("seen_at", Double, nullable=False),
    Column("gpus", BigInteger, nullable=False, server_default="0"),
    Column("neurons", BigInteger, nullable=False, server_default="0"),
    Column("fpgas", BigInteger, nullable=False, server_default="0"),
)

price_changes: Final = Table(
    "price_changes",
    metadata,
    Column("type", _TEXT, nullable=False),
    Column("zone", _TEXT, nullable=False),
    Column("market", _TEXT, nullable=False),
    # Begin of the hour. A price has one row for each hour in which it changed.
    Column("hour", Double, nullable=False),
    Column("price", Double, nullable=False),
    PrimaryKeyConstraint("type", "zone", "market", "hour"),
    sqlite_with_rowid=False,
)

prices: Final = Table(
    "prices",
    metadata,
    Column("type", _TEXT, nullable=False),
    # An availability zone, or a region.
    Column("zone", _TEXT, nullable=False),
    Column("market", _TEXT, nullable=False),
    Column("price", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("source", _TEXT, nullable=False),
    PrimaryKeyConstraint("type", "zone", "market"),
    sqlite_with_rowid=False,
)
