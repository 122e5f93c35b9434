"""A budget in Redis for the EC2 calls of all processes, so that the calls of one worker do not use up EC2's limits for
the others.

EC2 has token buckets for each account and region, and refuses a call that finds its bucket empty. One launch too many
puts a pool into launch back-off (a pause of launches), and calls that only read can use up the tokens that a
termination needs. So every attempt of a call first takes its tokens from this budget, and waits for them if necessary.

Terminations have precedence over launches, and launches over reading calls: in the bucket that all kinds of calls
share, each kind leaves tokens for the kinds that have precedence over it. Source: EC2's request limits (100 reads, 20 a
second; RunInstances 5, 2 a second; TerminateInstances 100, 5 a second).

EC2's limits may be lower than these, or shared with other programs of the account. If EC2 refuses a call because of the
rate of calls, the bucket of that kind of call in that region is emptied, and gains tokens only half as fast as before.
Then its gain grows by a fixed amount a second, until it is the configured one again. Source: TCP's congestion control
(additive increase, multiplicative decrease).
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import redis

from scheduler.view.connection import load_script

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CALLS_PER_SECOND: Final = 20.0
"""EC2's default limit for an AWS account, in API calls a second."""
PATIENCE: Final = 10.0
"""Longest time in seconds that an EC2 call waits for its tokens. Then the call is sent without them, and EC2 may refuse
it.
"""
LAUNCHES: Final = ("RunInstances", "CreateFleet")
TERMINATIONS: Final = ("TerminateInstances",)


REFUSED: Final = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException"})
"""Error codes with which EC2 refuses a call because calls came too fast."""
REGAINED: Final = 0.02
"""Share of its configured gain that a bucket gets back in a second: all of it in less than a minute."""
CUT: Final = 0.5
"""Factor by which the gain of a token bucket is multiplied after EC2 refused a call because of the rate of calls."""
LEAST_SHARE: Final = 0.05
"""Lower limit for the gain of a token bucket (tokens a second), as a share of the configured gain."""
SAME_REFUSAL_MS: Final = 1000
"""Milliseconds after a refusal in which further refusals do not lower the gain of the same token bucket again. The
refused calls were under way at the same time.
"""


class Share(msgspec.Struct, frozen=True):
    """What one kind of EC2 call may take from the call budget. The numbers are for an AWS account to which EC2 grants
    one call a second; CallBudget multiplies them by the account's real limit.

    All EC2 calls share the common bucket, which gains 1 token a second and holds 5. If `bucket` is not None, this kind
    of call also takes tokens from a bucket with this name, which gains `gain` tokens a second and holds `size`.
    """

    left: float
    """Number of tokens that must remain in the common bucket when a call of this kind has taken its token. These tokens
    are left to the kinds of calls that have precedence over this kind.
    """
    bucket: str | None = None
    gain: float = 0.0
    size: float = 0.0


COMMON: Final = "calls"
"""Name of the bucket that all kinds of calls share."""
COMMON_SIZE: Final = 5.0
LOOK: Final = Share(left=2.0)
SHARES: Final = {
    **dict.fromkeys(LAUNCHES, Share(left=1.0, bucket="launches", gain=0.1, size=0.25)),
    **dict.fromkeys(TERMINATIONS, Share(left=0.0, bucket="terminations", gain=0.25, size=5.0)),
}


class CallBudget:
    """The budget for the EC2 calls of a cluster in one AWS account, shared through Redis. Safe for threads and
    processes.

    `per_second`: the calls a second that EC2 grants the account. The sizes and gains of all token buckets are
    multiplied by this number. While Redis is unavailable, no call waits for tokens. `pause` sleeps for a number of
    seconds. `clock` is a monotonic clock.
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
        self._lower = load_script(client, "budget_refused", package="workers.ec2")
        self._prefix, self._per_second = prefix, per_second
        self._pause, self._clock = pause, clock

    def guard(self, client: "EC2Client") -> None:
        """Let every EC2 call of this boto3 client, and every attempt of a call, first take its tokens from the budget.
        If EC2 refuses an attempt because of the rate of calls, lower the budget (see `lower`).
        """
        region = client.meta.region_name

        def await_tokens(event_name: str, **_request: Any) -> None:
            self.await_tokens(event_name.rpartition(".")[2], region)

        def note_answer(event_name: str, parsed_response: Any = None, **_response: Any) -> None:
            if ((parsed_response or {}).get("Error") or {}).get("Code") in REFUSED:
                self.lower(event_name.rpartition(".")[2], region)

        client.meta.events.register("before-send.ec2", await_tokens)
        client.meta.events.register("response-received.ec2", note_answer)

    def await_tokens(self, action: str, region: str) -> None:
        """Take the tokens of one EC2 call in this region from the budget. If tokens are missing, wait for them, at most
        PATIENCE seconds; after that time return without them.
        """
        share, rate = SHARES.get(action, LOOK), self._per_second
        # The bucket holds at least one token, because no call could ever take one from a smaller bucket.
        size = max(1.0, COMMON_SIZE * rate)
        common: list[Any] = [COMMON, rate, size, min(share.left * rate, size - 1)]
        own = [share.bucket, share.gain * rate, max(1.0, share.size * rate), 0] if share.bucket else []
        key, arguments = f"{self._prefix}ec2:{region}", [REGAINED, *common, *own]
        end = self._clock() + PATIENCE
        while (left := end - self._clock()) > 0:
            try:
                wait = int(self._take([key], arguments)) / 1000
            except redis.RedisError:
                return
            if not wait:
                return
            self._pause(min(wait, left))

    def lower(self, action: str, region: str) -> None:
        """Empty the token bucket of this kind of call in this region, and lower its gain. Called after EC2 has refused
        such a call because of the rate of calls. If this kind of call has no bucket of its own, the common bucket is
        emptied.
        """
        bucket = SHARES.get(action, LOOK).bucket or COMMON
        with suppress(redis.RedisError):
            self._lower([f"{self._prefix}ec2:{region}"], [bucket, REGAINED, CUT, LEAST_SHARE, SAME_REFUSAL_MS])
