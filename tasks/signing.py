"""Signs the messages that this cluster's processes send to each other. Messages to the queues of producers are not
signed.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Producer
from kombu.pools import ProducerPool
from kombu.serialization import dumps

from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.names import TASK_PREFIX
from workers.access import Access
from workers.logs import get_logger

log = get_logger(__name__)

FindAccess = Callable[[], Access]


class SigningProducer(Producer):
    """A kombu producer (the object that sends messages) that signs the messages for this cluster's tasks. It serializes
    the body itself, so that exactly the bytes that are sent are signed.
    """

    def __init__(self, find_access: FindAccess | None, *arguments: Any, **options: Any) -> None:
        self._find_access = find_access
        super().__init__(*arguments, **options)

    def publish(self, body: Any, routing_key: str | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Publish a message as kombu does; a message for one of this cluster's tasks is signed first."""
        headers = options.get("headers") or {}
        if self._find_access is None or not str(headers.get("task")).startswith(f"{TASK_PREFIX}."):
            return super().publish(body, routing_key=routing_key, **options)
        content_type, encoding, text = dumps(body, serializer=options.pop("serializer", None) or self.serializer)
        content = text.encode(encoding)
        signed = {**headers, **_sign(self._find_access, routing_key or "", headers, content)}
        given = {**options, "headers": signed, "content_type": content_type, "content_encoding": encoding}
        return super().publish(content, routing_key=routing_key, **given)


def _sign(find_access: FindAccess, queue: str, headers: Mapping[str, Any], body: bytes) -> dict[str, str]:
    """Return the headers that sign a message. If no key can be read, log a warning and return {}.

    A worker with `access.mode` `signed` then refuses the message. The work of the message is done later: by the next
    tick, or after the periodic task `sweep` or `recover` has sent a new message.
    """
    try:
        return find_access().sign(queue=queue, task=headers["task"], message_id=headers["id"], body=body)
    except (StoreUnavailableError, InvalidInputError) as error:
        log.warning(
            "No key can be read, so a message is sent without a signature; workers that require one refuse it.",
            action="message.unsigned",
            error=str(error),
        )
        return {}


class SigningAMQP(AMQP):
    """Celery's AMQP class (which makes and sends messages), changed so that every message is signed: those of the pool
    of kombu producers and those of beat.
    """

    find_access: FindAccess | None = None
    _producer_pool: ProducerPool | None = None

    @property
    def Producer(self) -> Any:  # type: ignore[override]  # noqa: N802 - Celery's name
        """The replacement of Celery's `AMQP.Producer`: a function that makes kombu producers that sign each message."""
        return partial(SigningProducer, self.find_access)

    @property
    def producer_pool(self) -> ProducerPool:
        """The pool of kombu producers that sign messages. Each process makes its own pool at the first use, because
        Celery resets `_producer_pool` after a fork.
        """
        if self._producer_pool is None:
            pool: Any = self.app.pool
            self._producer_pool = ProducerPool(connections=pool, limit=pool.limit, Producer=self.Producer)
        return self._producer_pool


def sign_with(app: Celery, find_access: FindAccess) -> None:
    """Let the Celery application `app` sign its messages with the keys of the Access that `find_access` returns.
    `find_access` is called when the first message is sent. An application whose AMQP class does not sign is not
    changed.
    """
    if isinstance(app.amqp, SigningAMQP):
        app.amqp.find_access = find_access


class AccessSigner:
    """Signs messages that a MessageWriter writes without a kombu producer. The keys are in the Access (a copy of the
    cluster's principals) that the function passed to `sign_with` returns.
    """

    def __init__(self, amqp: SigningAMQP) -> None:
        self._amqp = amqp

    def sign(self, queue: str, headers: Mapping[str, Any], body: bytes) -> dict[str, str]:
        """Return the headers that sign a message; {} if no key can be read."""
        find_access = self._amqp.find_access
        return {} if find_access is None else _sign(find_access, queue, headers, body)


def find_signer(app: Celery) -> AccessSigner | None:
    """Return the signer of the application's messages; None if the application does not sign messages."""
    return AccessSigner(app.amqp) if isinstance(app.amqp, SigningAMQP) else None
