"""What a cluster keeps, and what each row of it costs: bytes in Redis, bytes in the database, memory of the leader,
rows of a reservation's life, and connections of each process.

`python -m bench.scale [--slots N...] [--part rows] [--part life] [--json]`. The part `rows` runs whole ticks on SQLite,
the part `life` runs a whole stack on PostgreSQL.
"""

import argparse
import json
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, make_url

from bench._stack import open_stack
from bench.throughput import SLOTS, lease_many
from leasehold.stack import Stack
from scheduler.store.tables import metadata
from testbed.postgresql_server import open_postgresql
from testbed.tick_fleet import LEASES_A_SLOT, Fleet, open_fleet

SIZES = (1_000, 10_000)
LIVES = 500
WAITING, ENDED = "waiting reservation", "ended reservation"
PARTS = ("rows", "life")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Figures = dict[str, float]


def measure_rows(slots: int) -> dict[str, Figures]:
    """Return what one row of each kind takes, in bytes of Redis, of the database, and of the leader's memory."""
    found: dict[str, Figures] = {}
    with open_fleet(on_postgresql=False) as fleet:
        before = _read_sizes(fleet)
        for name, count in _grow(fleet, slots):
            after = _read_sizes(fleet)
            found[name] = {key: (after[key] - before[key]) / count for key in after}
            before = after
    for key, added in found[ENDED].items():
        # The waiting ones took the places of those that ended.
        found[ENDED][key] = added + found[WAITING][key]
    return found


def _grow(fleet: Fleet, slots: int) -> Iterator[tuple[str, int]]:
    """Fill a fleet, and yield what was added with its number."""
    reservations = slots * LEASES_A_SLOT
    fleet.prepare(slots)
    fleet.tick()
    yield "slot", slots
    fleet.submit(reservations)
    fleet.tick()
    yield "leased reservation", reservations
    fleet.submit(reservations)
    fleet.tick()
    yield WAITING, reservations
    fleet.release(reservations)
    fleet.tick()
    yield ENDED, reservations


def _read_sizes(fleet: Fleet) -> Figures:
    with closing(sqlite3.connect(fleet.database_url.removeprefix("sqlite:///"))) as connection:
        pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES
    info = fleet.client.info("memory")
    return {"redis": info["used_memory"], "database": pages * size, "leader": resident}


def measure_life(count: int) -> dict[str, Any]:
    """Return rows and bytes in PostgreSQL of one reservation that was submitted in a list, leased and released by a
    message of its own; and the connections of each process.
    """
    with (
        open_postgresql() as url,
        open_stack(slots=SLOTS, leases_per_slot=-(-count // SLOTS), database_url=url) as (stack, client),
    ):
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
        with engine.connect() as connection:
            before = _read_tables(connection)
            store = stack.open_store()
            lease_many(client, store, count, 0)
            for row in store.find_reservations(phases=["leased"], limit=count):
                client.release(row.id, row.token)
            store.close()
            connection.rollback()
            after = _read_tables(connection)
        engine.dispose()
        connections = count_connections(stack, {"redis": stack.url, "database": url})
    tables = {
        name: {"rows": (rows - before[name][0]) / count, "bytes": (size - before[name][1]) / count}
        for name, (rows, size) in after.items()
    }
    return {"tables": tables, "connections": connections}


def _read_tables(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the rows of each table, and its bytes with its indexes."""
    found = {}
    for table in metadata.sorted_tables:
        rows = connection.execute(text(f'SELECT count(*) FROM "{table.name}"')).scalar_one()  # noqa: S608 - own tables
        size = connection.execute(text(f"SELECT pg_total_relation_size('\"{table.name}\"')")).scalar_one()
        found[table.name] = (int(rows), int(size))
    return found


def count_connections(stack: Stack, urls: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the connections of each process of the stack, with its children, to the servers of these URLs."""
    ports = {urlsplit(url).port: name for name, url in urls.items()}
    groups = {os.getpgid(pid): name for name, pid in stack.pids().items()}
    servers = {inode: name for inode, port in _list_sockets() if (name := ports.get(port))}
    found: dict[str, Counter[str]] = {name: Counter() for name in groups.values()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (name := _find_group(folder, groups)):
            found[name].update(servers[inode] for inode in _list_inodes(folder) if inode in servers)
    return {name: dict(counted) for name, counted in found.items()}


def _list_sockets() -> Iterator[tuple[str, int]]:
    """Yield (inode, remote port) of each TCP socket of this host."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        yield fields[9], int(fields[2].rpartition(":")[2], 16)


def _find_group(folder: Path, groups: Mapping[int, str]) -> str | None:
    try:
        return groups.get(os.getpgid(int(folder.name)))
    except ProcessLookupError:
        return None


def _list_inodes(folder: Path) -> Iterable[str]:
    """Return the inodes of the sockets that a process has open."""
    links = []
    for entry in folder.joinpath("fd").iterdir():
        try:
            links.append(entry.readlink().name)
        except FileNotFoundError:
            continue
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def show_rows(slots: int, figures: Mapping[str, Figures]) -> None:
    """Print a line for each kind of row."""
    for name, sizes in figures.items():
        shown = "".join(f"{key} {size:8,.0f} B   " for key, size in sizes.items())
        print(f"{slots:>8,} slots, one {name:<22}{shown}", flush=True)


def show_life(figures: Mapping[str, Any]) -> None:
    """Print a line for each table that grew, and for each process."""
    for name, grown in figures["tables"].items():
        if grown["rows"]:
            print(f"one reservation, table {name:<14}{grown['rows']:6.2f} rows {grown['bytes']:8,.0f} B with indexes")
    for name, counted in figures["connections"].items():
        shown = ", ".join(f"{number} to {server}" for server, number in sorted(counted.items()))
        print(f"connections of {name:<14}{shown or 'none'}")


def main() -> None:
    """Measure and show what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="What each row of a cluster costs.")
    parser.add_argument("--slots", nargs="+", type=int, default=list(SIZES), help="sizes; default: %(default)s")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: both")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if "rows" in (options.part or PARTS):
        # A process for each size: the memory of one is not what an earlier one left.
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
            for slots in options.slots:
                found[f"{slots}"] = processes.submit(measure_rows, slots).result()
                if not options.json:
                    show_rows(slots, found[f"{slots}"])
    if "life" in (options.part or PARTS):
        found["life"] = measure_life(LIVES)
        if not options.json:
            show_life(found["life"])
    if options.json:
        json.dump(found, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
