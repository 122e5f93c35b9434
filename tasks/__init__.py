"""The Celery application: queues, beat schedule, one thin module per queue."""
