"""Dask on leases: each worker is the command of a reservation, and the machines come and go as Leasehold decides.

    from leasehold.work.dask import LeaseholdCluster

    with LeaseholdCluster(system="x86_64-linux", resources={"cpus": 2}, nthreads=2) as cluster:
        cluster.adapt(minimum=0, maximum=20)
        client = cluster.get_client()

A worker whose lease is revoked is retired: it gives its results to other workers before the deadline of the notice. A
worker whose machine is lost waits for a lease again, under the same name. Each host needs `leasehold` and `distributed`
in the Python that `python` names, and must reach the scheduler's address.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from distributed import Scheduler, Worker
from distributed.core import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import ProcessInterface, SpecCluster

from leasehold.client.async_client import AsyncClient
from leasehold.errors import LeaseholdError, NotAnswered, Unavailable

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 30.0
"""Seconds for which a worker that has to stop may give its results away."""
_SIGNAL: Final = "USR1"
"""The signal by which a host stops a worker. A Dask worker would drop its results at SIGTERM."""


class LeaseholdWorker(ProcessInterface):
    """A Dask worker as the command of a reservation."""

    def __init__(
        self,
        scheduler: str,
        name: str | int,
        *,
        client: AsyncClient,
        reservation: Mapping[str, Any],
        python: str,
        nthreads: int,
        memory_limit: str,
        env: Mapping[str, str],
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)
        self._client = client
        self.id = f"dask-{name}-{uuid4().hex[:12]}"
        """The id of the reservation."""
        self._document = {
            "restart_policy": "on_failure",
            "on_interruption": "requeue",
            **reservation,
            "id": self.id,
            "tags": {"name": "dask", **reservation.get("tags", {})},
        }
        program = [python, "-m", "distributed.cli.dask_worker", scheduler, "--no-nanny", "--no-dashboard"]
        options = {"--name": str(name), "--nthreads": str(nthreads), "--memory-limit": memory_limit}
        command = [*program, *(word for pair in options.items() for word in pair), "--preload", __name__]
        self._run: Any = {"argv": command, "env": dict(env), "stop_signal": _SIGNAL, "grace": GRACE_SECONDS}

    async def start(self) -> None:
        """Submit the reservation. The worker starts when it has a lease."""
        await self._client.submit(self._document, run=self._run)
        await super().start()

    async def close(self) -> None:
        """Cancel the reservation. A worker that has ended already stays so."""
        while self.status not in {Status.closing, Status.closed}:
            try:
                await self._client.cancel(self.id)
                break
            except (NotAnswered, Unavailable):
                # Otherwise the worker would hold its machine until its end.
                await asyncio.sleep(1.0)
            except LeaseholdError:
                break
        await super().close()


class LeaseholdCluster(SpecCluster):
    """A Dask cluster whose workers are commands on leases. `scale`, `adapt` and `get_client` are those of Dask.

    `url`, `key_file`: the stack, as for `Client`; its principal needs the right `run`. `system` or `pool`, `resources`,
    `account`, `priority` and other fields of a reservation: what each worker asks for. `nthreads`, `memory_limit`: of
    each worker. `python`: the program on the hosts. `env`: variables of the workers. `host`: the address at which the
    hosts reach the scheduler, which runs in this process. `n_workers`: the first size.
    """

    def __init__(  # noqa: PLR0913 - each is an option of its own
        self,
        *,
        url: str | None = None,
        key_file: str | None = None,
        nthreads: int = 1,
        memory_limit: str = "auto",
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        host: str | None = None,
        n_workers: int = 0,
        asynchronous: bool = False,
        **reservation: Any,
    ) -> None:
        self._leasehold = AsyncClient(url, key_file=key_file)
        options = {
            "client": self._leasehold,
            "reservation": reservation,
            "python": python,
            "nthreads": nthreads,
            "memory_limit": memory_limit,
            "env": dict(env or {}),
        }
        super().__init__(
            workers={number: {"cls": LeaseholdWorker, "options": options} for number in range(n_workers)},
            scheduler={"cls": Scheduler, "options": {"host": host, "dashboard": False}},
            worker={"cls": LeaseholdWorker, "options": options},
            asynchronous=asynchronous,
            name="leasehold",
        )
        self._i = n_workers

    def _update_worker_status(self, op: str, msg: str) -> None:
        """Keep a worker that left: its reservation waits for another machine. Dask would close it after 15 seconds."""
        # Dask has no setting of one cluster for these seconds.
        Cluster._update_worker_status(self, op, msg)  # noqa: SLF001 - the base class of the base class

    async def _close(self) -> None:
        await super()._close()
        await self._leasehold.close()


async def dask_setup(worker: Worker) -> None:
    """Retire the worker when its host stops it. Dask calls this in each worker (`--preload`)."""

    def retire() -> None:
        task = asyncio.ensure_future(_retire(worker))
        worker.leasehold_retiring = task  # the loop keeps only a weak reference

    asyncio.get_running_loop().add_signal_handler(getattr(signal, f"SIG{_SIGNAL}"), retire)


async def _retire(worker: Worker) -> None:
    log.info("The lease of this worker ends: its results go to other workers.")
    await worker.close_gracefully(restart=False, reason="its lease ends")
