"""Whether the console may start: on an address other than loopback it needs a way in for some known caller."""

from scheduler.model.principals import WORKER
from scheduler.model.validation import show
from scheduler.ports import Store, StoreUnavailableError
from workers.settings import Settings, is_loopback


def find_refusal(settings: Settings, *, has_principals: bool, local: bool) -> str | None:
    """Return why the console must not start with these settings, or None if it may: on an address other than loopback
    there must be a way in for some caller. With `local` (the local stack) the address must be one of loopback.
    """
    console = settings.console
    if is_loopback(console.host):
        return None
    if local:
        return f"console.host: expected a loopback address in the local stack, got {show(console.host)}"
    if has_principals or console.token_file is not None or console.user_header is not None:
        return None
    return (
        "console.token_file: expected a way in, because console.host is no loopback address: a principal"
        " (`leasehold principals add`), console.token_file or console.user_header, got none"
    )


def has_principals(store: Store) -> bool:
    """Return whether the database has a principal that may log in; False while it is unavailable."""
    try:
        return any(row.name != WORKER for row in store.find_principals())
    except StoreUnavailableError:
        return False
