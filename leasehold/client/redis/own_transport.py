"""The transport of requests for commands that read the configuration of the cluster's own processes. By this
configuration they reach the database and the keys of the cluster.
"""

from contextlib import closing, suppress

from leasehold.client.credentials import Credentials, find_credentials
from leasehold.client.redis.transport import RequestTransport
from scheduler.model.principals import WORKER
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.signing import read_key
from scheduler.store.opening import open_store
from workers.setting_types import reveal
from workers.settings import Settings


def open_wire(settings: Settings) -> RequestTransport:
    """Return a transport for requests to the cluster of these settings. Raise BadCredentials if the configured key
    cannot be used.

    If a key is configured, the transport signs messages as the principal `access.principal`. If not, it signs them as
    the principal of the workers, or not at all if `access.mode` is `open`.
    """
    access = settings.access
    credentials = find_credentials({}, access.principal, reveal(access.key) if access.key else None, access.key_file)
    if credentials is None and access.mode != "open":
        # If the database cannot be reached, messages are not signed, and workers refuse them.
        with suppress(StoreUnavailableError), closing(open_store(settings.database_url)) as store:
            key = next((row.key for row in store.find_principals() if row.name == WORKER), None)
            if key is not None:
                credentials = Credentials(WORKER, read_key(key), store.read_cluster().identity)
    return RequestTransport(settings.broker_url or "", settings.view.prefix, settings.view_url, credentials)
