"""A small fleet with something to see: two pools, three accounts under `queue = "quota"`, leases, waits, a preemption,
a cordoned slot, and a rule change.
"""

import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

from leasehold.client.client import Client
from leasehold.client.reservation_fields import ComponentFields
from scheduler.model.market import PriceChange
from scheduler.ports import Store

IMAGE: Final = "ami-04681a1dbd79675a5"
X86, ARM = "x86_64-linux", "aarch64-linux"
ZONE: Final = "us-east-1a"
HOUR: Final = 3600.0
PATIENCE_SECONDS: Final = 90.0
ENVIRONMENT: Final = {
    "LEASEHOLD_TICKS__INTERVAL": "1",
    "LEASEHOLD_SWEEP_INTERVAL": "1",
    "LEASEHOLD_MARKET__PRICE_INTERVAL": "5",
}
EMULATOR: Final = {"boot_seconds": 1.0, "status_seconds": 0.5, "terminate_seconds": 0.5}
RULES: Final[dict[str, Any]] = {
    "scheduler": {"queue": "quota", "preemption_grace": 600},
    "pools": {
        "linux": {
            "system": X86,
            "min_slots": 10,
            "max_slots": 14,
            "idle_scale_down": 3600,
            "labels": {"os": "trixie"},
            "replacement": {"max_age": 86400},
            "offerings": [
                {"name": name, "market": market, "price": price, "zone": zone, "resources": {"cpus": 8, "gib": 32}}
                for name, market, price, zone in (
                    ("m6i.2xlarge", "spot", 0.15, "us-east-1a"),
                    ("m6i.2xlarge", "on-demand", 0.38, "us-east-1b"),
                )
            ],
            "ec2": {"image": IMAGE},
        },
        "arm": {
            "system": ARM,
            "min_slots": 4,
            "max_slots": 4,
            "idle_scale_down": 3600,
            "market": {"prices": True},
            "offerings": [
                {"name": "m7g.xlarge", "zone": ZONE, "resources": {"cpus": 4, "gib": 16}},
                {"name": "r7g.xlarge", "zone": ZONE, "resources": {"cpus": 4, "gib": 32}},
            ],
            "ec2": {"image": IMAGE},
        },
    },
    "budgets": {
        "all": {"per_hour": 6, "per_day": 120, "action": "drain"},
        "nightly": {"per_month": 150, "accounts": ["nightly"]},
        "arm": {"per_hour": 0.2, "pools": ["arm"], "action": "warn"},
    },
    "accounts": {
        "ci": {
            "description": "Builds of every push",
            "charge_rate": [0, 14],
            "max_charge_seconds": 3600,
            "balance": [0, 900],
        },
        "nightly": {
            "description": "Tests of the night",
            "charge_rate": [0, 0, 2],
            "max_charge_seconds": 600,
            "balance": [0, 0, 40],
        },
        "release": {
            "description": "Builds of releases",
            "charge_rate": [2],
            "max_charge_seconds": 3600,
            "balance": [1500],
        },
    },
}
WAITING: Final = "load-test-7"


def add_prices(store: Store) -> None:
    """Store a week of invented changes for each price that the table has."""
    walk, now, changes = Random(7), store.now(), list[PriceChange]()
    for known in store.load_market().prices:
        price = known.price
        for hours in range(2, 170, 5):
            price = min(1.3 * known.price, max(0.7 * known.price, price * walk.uniform(0.92, 1.09)))
            at = now // HOUR * HOUR - hours * HOUR
            change = PriceChange(type=known.type, zone=known.zone, market=known.market, hour=at, price=round(price, 4))
            changes.append(change)
    with store.transaction() as transaction:
        transaction.save_price_changes(changes)


def fill(client: Client) -> None:
    """Submit the reservations of the fleet, and return when they have the phases that the pictures show."""
    least = sum(pool["min_slots"] for pool in RULES["pools"].values())
    _await("min_slots of each pool", lambda: len(client.slots(state="ready")) >= least)
    for number in range(1, 8):
        _reserve(client, f"ci-build-{1480 + number}", X86, "ci", cpus=2 + 2 * (number % 2), gib=8)
    _reserve(client, "render-arm-1", ARM, None, cpus=4, gib=8)
    _reserve(client, "render-arm-2", ARM, "ci", cpus=2, gib=8)
    _await_phase(client, "leased", 9)
    # They come after the builds, because a build would preempt them.
    for number in range(1, 12):
        _reserve(client, f"nightly-{number:02}", X86, "nightly", cpus=8, gib=16, tags={"suite": "nightly"})
    _await_phase(client, "leased", 20)
    client.release("ci-build-1482", token=client.get("ci-build-1482").leases[0].token)  # type: ignore[union-attr]
    client.cordon("arm-3")
    _submit_waits(client)


def _submit_waits(client: Client) -> None:
    """Fill what is left, and submit reservations that wait for different reasons."""
    for number in range(12, 15):
        _reserve(client, f"nightly-{number}", X86, "nightly", cpus=8, gib=32, tags={"suite": "nightly"})
    gang: list[ComponentFields] = [
        {"name": "server", "resources": {"cpus": 4.0}},
        {"name": "clients", "count": 3, "resources": {"cpus": 2.0}},
    ]
    client.reserve(id=WAITING, system=ARM, account="ci", components=gang)
    _reserve(client, "render-arm-3", ARM, "ci", cpus=4, gib=16, labels={"gpu": "none"})
    _reserve(client, "huge-index", X86, "ci", cpus=64, gib=256)
    client.reserve(id="backfill-of-the-archive", system=X86, resources={"cpus": 8.0}, priority=0)
    client.cancel(client.reserve(id="ci-build-1488", system=X86, account="ci", resources={"cpus": 64.0}).id)
    for name in ("release-2.4-linux", "release-2.4-check", "release-2.4-docs"):
        _reserve(client, name, X86, "release", cpus=8, gib=32)
    _await_phase(client, "revoking", 3)


def _reserve(
    client: Client,
    name: str,
    system: str,
    account: str | None,
    *,
    labels: dict[str, str] | None = None,
    tags: dict[str, str] | None = None,
    **resources: float,
) -> None:
    optional = {"account": account, "labels": labels, "tags": tags}
    given: dict[str, Any] = {key: value for key, value in optional.items() if value}
    client.reserve(id=name, system=system, resources=resources, ttl=0, **given)


def _await_phase(client: Client, phase: str, count: int) -> None:
    _await(f"{count} reservations {phase}", lambda: len(client.list(phase=phase)) >= count)


def _await(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_SECONDS:g} s in vain for {what}")
        time.sleep(0.1)
