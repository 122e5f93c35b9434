"""The value of a heartbeat in Redis: `machine`, `machine version`, or `machine version counter mac`, separated by
spaces.

`machine` is the id of the host's machine, a name without spaces. `version` is the version of the slot that the host has
read last, `-` before the first read. Only a heartbeat that is signed with a principal's key has `counter` and `mac`.
"""

import hashlib
import hmac
import re
from typing import Final, NamedTuple

from scheduler.protocol.signing import encode_canonically

BEATS_A_TIMEOUT: Final = 6
LONGEST_BEAT_SECONDS: Final = 30.0
SHORTEST_BEAT_SECONDS: Final = 0.3
LIVE_BEATS: Final = 2
"""An agent counts as live for this many times the interval of its heartbeats after its last one."""
VERSION: Final = "leasehold-heartbeat-1"
"""First field of the signed bytes of a heartbeat. A new format gets a new version."""
_UNKNOWN: Final = "-"
_MOST: Final = 1000
"""The most characters of a heartbeat. A longer value in Redis is not read as a heartbeat."""
_WORD: Final = re.compile(r"[!-~]+")
_COUNTER: Final = re.compile(r"[0-9]{1,16}")


class Heartbeat(NamedTuple):
    """The content of one heartbeat. `version`: the version of the slot that the host has read last. A signed heartbeat
    has a `counter`, which grows with each heartbeat, and the signature `mac`.
    """

    machine: str
    version: str | None = None
    counter: int | None = None
    mac: str | None = None


def find_beat(offline_timeout: float | None) -> float:
    """Return the seconds between two heartbeats of a host whose pool has this offline timeout, in seconds. Several
    heartbeats fit into the timeout, so that some may be lost. None: the pool has no offline timeout, and the result is
    the longest interval.
    """
    if offline_timeout is None:
        return LONGEST_BEAT_SECONDS
    return min(max(offline_timeout / BEATS_A_TIMEOUT, SHORTEST_BEAT_SECONDS), LONGEST_BEAT_SECONDS)


def sign_heartbeat(key: bytes, cluster: str, slot: str, beat: Heartbeat) -> Heartbeat:
    """Return the heartbeat with its signature `mac`.

    The signature is HMAC-SHA256, in lower-case hexadecimal, over cluster, slot, machine, version and counter, each as a
    netstring (see `signing.py`).
    """
    fields = (cluster, slot, beat.machine, beat.version or _UNKNOWN, str(beat.counter))
    mac = hmac.new(key, encode_canonically(VERSION, *fields), hashlib.sha256).hexdigest()
    return beat._replace(mac=mac)


def is_heartbeat_of(key: bytes, cluster: str, slot: str, beat: Heartbeat) -> bool:
    signed = sign_heartbeat(key, cluster, slot, beat).mac or ""
    return beat.mac is not None and hmac.compare_digest(signed, beat.mac)


def format_heartbeat(beat: Heartbeat) -> str:
    """Return the text that is stored in Redis for a heartbeat. `beat` has both `counter` and `mac`, or neither."""
    words = [beat.machine]
    if beat.version is not None or beat.counter is not None:
        words.append(beat.version or _UNKNOWN)
    if beat.counter is not None and beat.mac is not None:
        words += [str(beat.counter), beat.mac]
    return " ".join(words)


def read_heartbeat(value: bytes) -> Heartbeat | None:
    text = value.decode("ascii", "replace")
    if len(text) > _MOST:
        return None
    match text.split(" "):
        case words if not all(_WORD.fullmatch(word) for word in words):
            return None
        case [machine]:
            return Heartbeat(machine)
        case [machine, version]:
            return Heartbeat(machine, _read_version(version))
        case [machine, version, counter, mac] if _COUNTER.fullmatch(counter):
            return Heartbeat(machine, _read_version(version), int(counter), mac)
        case _:
            return None


def _read_version(word: str) -> str | None:
    return None if word == _UNKNOWN else word
