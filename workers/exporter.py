"""The metrics process, `python -m workers.exporter`, which serves the metrics to Prometheus."""

import sys
from functools import partial

from scheduler.model.validation import InvalidInputError
from scheduler.operations.membership import MembershipCheck
from scheduler.ports import ForeignClusterError
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.forecasts import RedisForecasts
from scheduler.view.redis_clock import RedisClock
from scheduler.view.redis_meter import RedisMeter
from scheduler.view.redis_ports import RedisRecord
from scheduler.view.redis_view_cache import RedisViewCache
from workers.clock_watch import ClockWatch
from workers.configuration import load_settings
from workers.environment import find_taken_port
from workers.logs import configure_logging
from workers.metrics import Sources, serve_metrics
from workers.queue_watch import QueueWatch
from workers.services import find_foreign


def main() -> int:
    """Serve the metrics to Prometheus until the process is stopped, and return 0.

    Return 1 after a message if the configuration is wrong, the port is taken, or Redis belongs to another cluster than
    the database.
    """
    try:
        settings = load_settings()
        configure_logging(settings.log.format, settings.log.level)
        taken = find_taken_port("metrics.port", settings.metrics.host, settings.metrics.port)
        if line := taken or find_foreign(settings):
            sys.stderr.write(f"leasehold: {line}\n")
            return 1
        client, prefix = make_redis(settings.view_url or ""), settings.view.prefix
        broker = client if settings.broker_url == settings.view_url else make_redis(settings.broker_url or "")
        store, clock = open_store(settings.database_url), RedisClock(client, prefix)
        sources = Sources(
            store,
            RedisMeter(client, prefix).read,
            RedisViewCache(client, prefix).read_report,
            QueueWatch(broker, clock.now).read,
            ClockWatch(client, prefix, clock).read,
            RedisForecasts(client, prefix).read_summary,
            settings.metrics.per_slot,
        )
        check = partial(MembershipCheck().compare, store, RedisRecord(client, prefix))
        serve_metrics(sources, settings.metrics.host, settings.metrics.port, check)
    except ForeignClusterError as error:
        lines = [str(error)]
    except InvalidInputError as error:
        lines = [str(fault) for fault in error.faults]
    except OSError as error:
        lines = [f"metrics.port: expected a free port, got {error}"]
    else:
        return 0
    sys.stderr.writelines(f"leasehold: {line}\n" for line in lines)
    return 1


if __name__ == "__main__":
    sys.exit(main())
