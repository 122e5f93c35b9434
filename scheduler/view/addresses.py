"""Where answers may be put: an address comes from outside, and must not name any other key."""

import re

from scheduler.ports import ForeignAddressError

DEFAULT_PREFIX = "leasehold:"
"""What the names of all our keys and channels begin with."""
_WORD = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_reply_address(address: str, prefix: str) -> None:
    """Raise ForeignAddressError unless this is `<prefix>reply:<word>`, a word of up to 100 plain characters."""
    start = f"{prefix}reply:"
    if not address.startswith(start) or not _WORD.fullmatch(address.removeprefix(start)):
        raise ForeignAddressError(f"reply_to: expected {start}<word>, got {address[:200]!r}")
