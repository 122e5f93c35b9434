"""The page About: the caller and its rights, and the number of rows in the view. It is the smallest page of the
console, and an example of the form of a page.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.console.page import Page, backend, caller, render
from scheduler.model.principals import ROLES_BY_VERB


async def show_about(request: Request) -> Response:
    """Show the caller, its rights, and the number of rows of the view by kind."""
    feed, sender = backend(request).feed, caller(request)
    await feed.refresh()
    with feed.lock:
        counts = [
            ("Slots", len(feed.view.slots)),
            ("Reservations", len(feed.view.reservations)),
            ("Accounts", len(feed.view.accounts)),
        ]
    rights = [(verb, sender.find_refusal(verb)) for verb in sorted(ROLES_BY_VERB)]
    return render(request, "about.html", page="about", counts=counts, rights=rights)


PAGE: Final = Page("about", "About", "/about", 900, [Route("/about", show_about)])
