"""A workload log on static hosts of one cpu each: what the benchmarks of forecasts and of the starvation guard play."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.fleet import Fleet, make_fleet
from scheduler.simulation.workload import Workload, read_workload

SYSTEM: Final = "linux"


@dataclass(frozen=True, slots=True)
class Log:
    """The first `limit` jobs of a log (None: all), on this number of hosts. `factor`: of the time between arrivals."""

    path: Path
    hosts: int
    limit: int | None = None
    factor: float = 1.0

    def read(self) -> Workload:
        workload = read_workload(self.path, self.hosts, limit=self.limit, skip_bad=True)
        begin = workload.begins_at
        jobs = [replace(each, submit_seconds=(each.submit_seconds - begin) * self.factor) for each in workload.jobs]
        return replace(workload, jobs=tuple(jobs))

    def make_fleet(self, scheduler: Mapping[str, Any]) -> Fleet:
        """Return the hosts under these settings of `[scheduler]`."""
        pool = {"provider": "static", "system": SYSTEM, "resources": {"cpus": 1}, "max_slots": self.hosts}
        return make_fleet({"scheduler": dict(scheduler), "pools": {"hosts": pool}}, CloudDocument())
