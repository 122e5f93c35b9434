"""What all processes together ask of EC2: one budget in Redis, so that no worker makes EC2 throttle the others.

EC2 keeps token buckets for an account in a region and refuses whoever comes to an empty one: a launch too many holds a
pool, and calls that only look can use up what a termination needs. So every attempt of a call takes its tokens here
first and waits for them if need be. Terminations go before launches and launches before looks: each leaves in the
common bucket what the ones before it may need. Source: EC2's own request limits (100 reads, 20 a second; RunInstances
5, 2 a second; TerminateInstances 100, 5 a second).
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis

from scheduler.view.connection import load_script

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CALLS_PER_SECOND: Final = 20.0
"""What EC2 grants an account that has asked for no more."""
PATIENCE: Final = 10.0
"""Seconds that a call waits for its tokens at most; then EC2 decides."""
LAUNCHES: Final = ("RunInstances", "CreateFleet")
TERMINATIONS: Final = ("TerminateInstances",)


class Share(msgspec.Struct, frozen=True):
    """What a kind of call takes its tokens from, each for one call a second that the account is granted.

    `gain` and `size` are of the kind's own bucket, None where it has none but the common one.
    """

    left: float
    """What it leaves in the common bucket, which gains 1 and holds 5."""
    bucket: str | None = None
    gain: float = 0.0
    size: float = 0.0


COMMON_SIZE: Final = 5.0
LOOK: Final = Share(left=2.0)
SHARES: Final = {
    **dict.fromkeys(LAUNCHES, Share(left=1.0, bucket="launches", gain=0.1, size=0.25)),
    **dict.fromkeys(TERMINATIONS, Share(left=0.0, bucket="terminations", gain=0.25, size=5.0)),
}


class CallBudget:
    """The budget of one cluster's account, shared through Redis; safe for any number of threads and processes.

    `per_second`: how many calls EC2 grants the account; the buckets grow with it. Without Redis nobody counts, and
    nobody waits. `pause` lets so many seconds pass, `clock` is monotonic.
    """

    def __init__(
        self,
        client: redis.Redis,
        prefix: str,
        per_second: float = CALLS_PER_SECOND,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._take = load_script(client, "budget", package="workers.ec2")
        self._prefix, self._per_second = prefix, per_second
        self._pause, self._clock = pause, clock

    def guard(self, client: "EC2Client") -> None:
        """Have every attempt of this client's calls take its tokens first."""
        region = client.meta.region_name

        def await_turn(event_name: str, **_request: Any) -> None:
            self.await_turn(event_name.rpartition(".")[2], region)

        client.meta.events.register("before-send.ec2", await_turn)

    def await_turn(self, action: str, region: str) -> None:
        """Take the tokens of this call, and wait for them, though not for longer than PATIENCE."""
        key, words = f"{self._prefix}ec2:{region}", self._buckets(SHARES.get(action, LOOK))
        end = self._clock() + PATIENCE
        while (left := end - self._clock()) > 0:
            try:
                wait = int(self._take([key], words)) / 1000
            except redis.RedisError:
                return
            if not wait:
                return
            self._pause(min(wait, left))

    def _buckets(self, share: Share) -> list[Any]:
        rate = self._per_second
        # A bucket that could not hold one token would let nothing through.
        size = max(1.0, COMMON_SIZE * rate)
        common = ["calls", rate, size, min(share.left * rate, size - 1)]
        own = [share.bucket, share.gain * rate, max(1.0, share.size * rate), 0] if share.bucket else []
        return common + own
