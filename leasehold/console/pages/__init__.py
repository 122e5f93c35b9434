"""The pages of the console. A new page is a module here that defines PAGE, and an entry in this list."""

from typing import Final

from leasehold.console.page import Page
from leasehold.console.pages import about, fleet

PAGES: Final[tuple[Page, ...]] = (fleet.PAGE, about.PAGE)
