"""The key of a host of a local stack (`leasehold up`), which the owner of the stack gets without a command."""

import os
from contextlib import closing
from importlib.util import find_spec

from leasehold.client.discovery import URL_VARIABLE, find_running
from scheduler.protocol.names import OWN_STACK_VARIABLE
from scheduler.protocol.signing import format_key_line


def find_own_key(slot: str) -> str | None:
    """Return the key line of the principal of this slot in the stack that runs in this folder or in one above it. If
    there is no such principal, add it: whoever can read the stack's folder may read its database, too.

    Return None if there is no such stack, if its Redis is not its own, if the principal of this name is no host, or if
    the libraries of a server are not installed.
    """
    if os.environ.get(URL_VARIABLE) or find_spec("sqlalchemy") is None:
        return None
    stack = find_running()
    if stack is None or stack.environment.get(OWN_STACK_VARIABLE) != "1":
        return None
    from scheduler.operations.principals import add_principal  # noqa: PLC0415 - an agent elsewhere needs no database
    from scheduler.store.opening import open_store  # noqa: PLC0415 - as above

    with closing(open_store(stack.database_url)) as store:
        found = next((each for each in store.find_principals() if each.name == slot), None)
        if found is None:
            found = add_principal(store, {"name": slot, "role": "host"})
        if found.role != "host":
            return None
        return format_key_line(found.name, found.key, store.read_cluster().identity)
