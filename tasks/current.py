"""The Celery application of this process, with the services that stand on it.

Celery and kombu make transports, requests and schedulers without our objects, so these find the application here.
`celery.current_app` may be another application that a program has made in this process.
"""

from typing import ClassVar

from celery import Celery

from workers.services import Services


class LeaseholdApp(Celery):
    """A Celery application with the services that its tasks use."""

    services: Services
    of_process: ClassVar["LeaseholdApp"]
    """The application of this process, which tasks/app.py makes."""


def find_app() -> LeaseholdApp:
    """Return the application of this process."""
    return LeaseholdApp.of_process


def find_services() -> Services:
    """Return the services of this process."""
    return LeaseholdApp.of_process.services
