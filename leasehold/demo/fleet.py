"""The rules of the demo's stack: one pool with up to three sizes of spot machines."""

from typing import Any

from leasehold.demo.stretch import Stretch

IMAGE = "ami-0123456789abcdef0"
"""Id of a machine image. Any id will do, because the EC2 emulator does not check it."""
SIZES: tuple[tuple[str, int, float], ...] = (
    ("m6i.2xlarge", 8, 0.15),
    ("m6i.8xlarge", 32, 0.60),
    ("m6i.32xlarge", 128, 2.40),
)
"""The sizes of machines, smallest first: instance type, number of cpus, and price in dollars an hour."""


def describe_fleet(stretch: Stretch, max_slots: int) -> dict[str, Any]:
    """Return rules with one pool of at most `max_slots` machines. The offerings of the pool can hold every job of
    `stretch` (the jobs that the demo plays), and idle machines are drained after two seconds.
    """
    widest = max(job.processors for job in stretch.jobs)
    needed = [size for index, size in enumerate(SIZES) if index == 0 or SIZES[index - 1][1] < widest]
    offerings: list[dict[str, Any]] = [
        {"name": name, "market": "spot", "price": price, "resources": {"cpus": cpus}} for name, cpus, price in needed
    ]
    offerings[-1]["resources"]["cpus"] = max(offerings[-1]["resources"]["cpus"], widest)
    pool = {
        "system": "x86_64-linux",
        "max_slots": max_slots,
        "idle_scale_down": 2,
        "offerings": offerings,
        "ec2": {"image": IMAGE},
    }
    return {"scheduler": {"queue": "fifo"}, "pools": {"demo": pool}}
