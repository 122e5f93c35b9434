"""The page Queues: the Celery queues with their lengths and the age of their oldest message, the leader and the last
tick, the clocks of the processes, and a link to Flower.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.history import read_strips
from leasehold.console.page import Page, backend, caller, keep, read_tick, render
from leasehold.errors import Unavailable
from scheduler.ports import ViewUnavailableError
from scheduler.protocol.clock import ProcessOffset
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.connection import make_redis
from scheduler.view.redis_clock import RedisClock
from workers.clock_watch import ClockWatch
from workers.queue_watch import QueueWatch, WaitingMessages
from workers.setting_types import reveal
from workers.settings import Settings

PURPOSES: Final = {
    "reservations": "requests of producers, holders, hosts and operators",
    "ticks": "requests for a tick, which plans and commits",
    "launch": "launches of machines",
    "health": "checks of machines, recovery of lost work, notices of EC2",
    "terminate": "terminations of machines",
}


async def show_queues(request: Request) -> Response:
    """Show the queues, the last tick and the processes. If the request has the header `HX-Target: queues`, show only
    the part of the page that changes with time.
    """
    services = backend(request)
    client, report = await services.client(caller(request)), await read_tick(request)
    queues: dict[str, WaitingMessages] = {}
    processes: list[ProcessOffset] = []
    problem = ""
    try:
        reader = keep(request, "queue_reader", lambda: _QueueReader(services.settings))
        queues, processes = await services.feed.unless_silent(services.run(reader.read))
    except (ViewUnavailableError, Unavailable) as error:
        problem = str(error)
    template = "queues_part.html" if request.headers.get("hx-target") == "queues" else "queues.html"
    return render(
        request,
        template,
        page="queues",
        queues=[(name, PURPOSES[name], queues.get(name)) for name in QUEUE_NAMES],
        processes=processes,
        report=report,
        waiting=len(report.get("waiting", {})),
        tick_age=client.now() - report["at"] if report else None,
        problem=problem,
        flower=services.settings.console.flower_url,
        strips=await read_strips(request),
    )


class _QueueReader:
    """Reads the lengths of queues and the clocks of processes from Redis, as the user that may count messages
    (`console.queues_url`).
    """

    def __init__(self, settings: Settings) -> None:
        url = reveal(settings.console.queues_url) if settings.console.queues_url else settings.broker_url
        # The user of the queues may read the clocks of the processes too, if it is on the Redis of the view.
        view_url = url if settings.view_url == settings.broker_url else settings.view_url
        view, prefix = make_redis(view_url or ""), settings.view.prefix
        broker, clock = view if url == view_url else make_redis(url or ""), RedisClock(view, prefix)
        self._queues, self._clocks = QueueWatch(broker, clock.now), ClockWatch(view, prefix, clock, "console")

    def read(self) -> tuple[dict[str, WaitingMessages], list[ProcessOffset]]:
        """Return the waiting messages by queue, and the clocks of the live processes. Raises ViewUnavailableError if
        Redis does not answer.
        """
        return self._queues.read(), sorted(self._clocks.read(), key=lambda each: (each.process, each.host))


PAGE: Final = Page("queues", "Queues", "/queues", 40, [Route("/queues", show_queues)])
