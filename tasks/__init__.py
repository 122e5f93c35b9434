"""The Celery application: settings, queues, routes, beat's schedule, a thin module for each queue, the dispatcher."""
