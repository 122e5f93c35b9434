"""The places in which machines are launched: subnets with their zones and their numbers of free addresses.

EC2 refuses a fleet that names one instance type twice in one zone. So a launch needs the zone of each subnet, and
chooses one subnet for each zone.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from scheduler.ports import CloudError, Place
from workers.ec2.errors import cloud_errors
from workers.ec2.requests import read_written
from workers.logs import get_logger

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

log = get_logger(__name__)
PLACES_SECONDS: Final = 300.0
"""Seconds for which the zone and the free addresses of a subnet are not read again."""
MOST_SUBNETS: Final = 200
"""Most values of one filter of a call that describes subnets."""


def describe_subnets(client: "EC2Client", subnets: Sequence[str]) -> dict[str, Place]:
    """Return subnet -> its place, as EC2 describes it. Subnets that EC2 does not know are missing. Raises
    CloudError.
    """
    found: dict[str, Place] = {}
    for begin in range(0, len(subnets), MOST_SUBNETS):
        # Filtered by id: an unknown id in `SubnetIds` would be an error.
        filters = [{"Name": "subnet-id", "Values": list(subnets[begin : begin + MOST_SUBNETS])}]
        with cloud_errors():
            answer = client.describe_subnets(Filters=filters)  # type: ignore[arg-type]  # the stubs want a TypedDict
        for each in answer["Subnets"]:
            found[each["SubnetId"]] = Place(
                subnet=each["SubnetId"], zone=each["AvailabilityZone"], free=each.get("AvailableIpAddressCount")
            )
    return found


class Places:
    """Finds zones and free addresses of subnets, and keeps them for some minutes. Safe for threads.

    `clock`: a monotonic clock.
    """

    def __init__(self, client: "EC2Client", clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._known: dict[tuple[str, ...], tuple[float, tuple[Place, ...]]] = {}

    def find(self, subnets: tuple[str, ...]) -> tuple[Place, ...]:
        """Return the places of these subnets of the rules, in their order. If EC2 does not describe a subnet, or
        refuses the call, its place is the one that the rules write.
        """
        if not subnets:
            return ()
        until, places = self._known.get(subnets, (0.0, read_written(subnets)))
        if self._clock() >= until:
            places = self._read(read_written(subnets), places)
            self._known[subnets] = self._clock() + PLACES_SECONDS, places
        return places

    def _read(self, written: tuple[Place, ...], known: tuple[Place, ...]) -> tuple[Place, ...]:
        try:
            found = describe_subnets(self._client, [place.subnet for place in written if place.subnet])
        except CloudError as error:
            log.warning(
                "The zones of subnets could not be read from EC2; zones that are known or written count.",
                action="launch.subnets_unknown",
                error=str(error),
            )
            return known
        return tuple(found.get(place.subnet or "", place) for place in written)
