"""The pages of the console. To add a page, add a module here that defines PAGE, and add PAGE to the tuple PAGES."""

from typing import Final

from leasehold.console.page import Page
from leasehold.console.pages import (
    about,
    accounts,
    api,
    doctor,
    events,
    fleet,
    forecasts,
    money,
    offers,
    queues,
    reservation,
    reservations,
    what_if,
)

PAGES: Final[tuple[Page, ...]] = (
    fleet.PAGE,
    reservations.PAGE,
    reservation.PAGE,
    accounts.PAGE,
    money.PAGE,
    offers.PAGE,
    forecasts.PAGE,
    queues.PAGE,
    events.PAGE,
    what_if.PAGE,
    doctor.PAGE,
    api.PAGE,
    about.PAGE,
)
