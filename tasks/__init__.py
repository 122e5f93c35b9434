"""Celery: the app, queues and routes, the beat schedule, one thin module per queue, the dispatcher."""
