"""Whether the console may start, and whether any caller can log in.

`leasehold doctor` reads this without the libraries of the extra `console`, so this module imports none of them.
"""

from scheduler.model.principals import WORKER
from scheduler.model.validation import show
from scheduler.ports import Store, StoreUnavailableError
from scheduler.protocol.loopback import is_loopback
from workers.settings import Settings


def find_refusal(settings: Settings, *, local: bool) -> str | None:
    """Return why the console must not start with these settings, or None if it may. With `local` (for a local stack)
    the console must listen on a loopback address.
    """
    if not local or is_loopback(settings.console.host):
        return None
    return f"console.host: expected a loopback address in the local stack, got {show(settings.console.host)}"


def has_way_in(settings: Settings, store: Store) -> bool:
    """Return whether some caller can log in: a principal, the holder of a token, or a user that a reverse proxy names.

    The console starts also if no caller can log in: it serves nothing to unknown callers, and a principal that is added
    later can log in at once.
    """
    console = settings.console
    return console.token_file is not None or console.user_header is not None or has_principals(store)


def has_principals(store: Store) -> bool:
    """Return whether the database has a principal that may log in; False if the database does not answer."""
    try:
        return any(row.name != WORKER for row in store.find_principals())
    except StoreUnavailableError:
        return False
