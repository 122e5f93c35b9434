"""The Celery application: its settings, queues and routes, the schedule of beat, a module with the tasks of each queue,
and the dispatcher, which sends messages.
"""
