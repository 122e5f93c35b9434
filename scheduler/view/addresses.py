"""Checks the addresses of answers. An address comes from outside, and must not name any other key."""

import re

from leasehold.common.names import RedisNames
from scheduler.ports import ForeignAddressError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_reply_address(address: str, prefix: str) -> None:
    """Raise ForeignAddressError unless the address is `<prefix>reply:<word>`, with a word of up to 100
    plain characters.
    """
    start = RedisNames(prefix).reply_start
    if not address.startswith(start) or not _NAME.fullmatch(address.removeprefix(start)):
        raise ForeignAddressError(f"reply_to: expected {start}<word>, got {address[:200]!r}")
