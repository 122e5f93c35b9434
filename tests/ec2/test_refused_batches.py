"""Calls about many machines, of which EC2 refuses some: which machines are changed, and by how many calls."""

from collections.abc import Callable, Collection, Sequence

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError

from scheduler.ports import CloudError
from workers.ec2.batches import MOST_REFUSALS, change_batches, each_batch

SIZE = 250
PROTECTED = "OperationNotPermitted"


def some_ids(count: int) -> list[str]:
    return [f"i-{number:017x}" for number in range(count)]


def refusal(code: str, message: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "TerminateInstances",
    )


class Cloud:
    """EC2, which refuses a call about any machine in `refused`. AWS does so for the zone of a protected machine."""

    def __init__(self, refused: Collection[str], code: str = PROTECTED, named: int = 0) -> None:
        self.refused, self.code, self.named = set(refused), code, named
        self.calls: list[list[str]] = []
        self.ended: set[str] = set()

    def end(self, ids: list[str]) -> list[str]:
        self.calls.append(ids)
        there = [each for each in ids if each in self.refused]
        if there:
            raise refusal(self.code, f"The instances '{', '.join(there[: self.named])}' may not be terminated.")
        self.ended.update(ids)
        return ids


def end(cloud: Cloud, ids: Sequence[str]) -> dict[str, str]:
    return {name: error.code for name, error in change_batches(ids, cloud.end, SIZE).items()}


@pytest.mark.parametrize("place", [0, 100, 249])
def test_one_refused_machine_of_250_costs_the_calls_of_a_binary_search(place: int) -> None:
    ids = some_ids(SIZE)
    cloud = Cloud([ids[place]])
    assert end(cloud, ids) == {ids[place]: PROTECTED}
    assert cloud.ended == {*ids} - {ids[place]}
    assert len(cloud.calls) <= 1 + 2 * 8


def test_a_machine_that_ec2_names_is_taken_out_first() -> None:
    ids = some_ids(SIZE)
    cloud = Cloud([ids[7]], named=1)
    assert end(cloud, ids) == {ids[7]: PROTECTED}
    assert [len(call) for call in cloud.calls] == [250, 249]
    assert len(cloud.ended) == 249


def test_many_machines_that_ec2_names_one_by_one_are_all_taken_out() -> None:
    """The rest is divided, so that the others end before EC2 has named all of them."""
    ids = some_ids(SIZE)
    cloud = Cloud(ids[:60], named=1)
    assert end(cloud, ids) == dict.fromkeys(ids[:60], PROTECTED)
    assert len(cloud.ended) == 190
    assert len(cloud.calls) <= 2 * 60 + 1


def test_a_name_that_was_not_in_the_call_takes_nothing_out() -> None:
    ids = some_ids(4)
    cloud = Cloud([])

    def call(sent: list[str]) -> None:
        if ids[0] in sent:
            raise refusal(PROTECTED, f"The instance 'i-0fffffffffffffff0' of {sent[0]}x may not be terminated.")
        cloud.end(sent)

    assert change_batches(ids, call, SIZE).keys() == {ids[0]}
    assert cloud.ended == {*ids[1:]}


@pytest.mark.parametrize("count", [1, 2, 19, 20, 250])
@pytest.mark.parametrize("named", [0, 1])
def test_where_all_are_refused_alike_it_ends_after_20_calls(count: int, named: int) -> None:
    ids = some_ids(count)
    cloud = Cloud(ids, named=named)
    assert end(cloud, ids) == dict.fromkeys(ids, PROTECTED)
    assert len(cloud.calls) <= MOST_REFUSALS == 20


def test_a_repeated_change_comes_to_the_machines_that_the_first_one_did_not_try() -> None:
    """One machine of 250 may be ended, and EC2 names none of the others."""
    ids = some_ids(SIZE)
    cloud = Cloud(ids[:249])
    left = set(ids)
    for _ in range(2000):
        refused = end(cloud, sorted(left))
        if ids[249] not in refused:
            break
    assert cloud.ended == {ids[249]}


def test_each_batch_of_250_is_tried() -> None:
    ids = some_ids(700)
    cloud = Cloud(ids[:250])
    assert end(cloud, ids) == dict.fromkeys(ids[:250], PROTECTED)
    assert cloud.ended == {*ids[250:]}
    assert len(cloud.calls) <= MOST_REFUSALS + 2


# Code, HTTP status -> whether a refused batch is divided.
CODES: list[tuple[str, int, bool]] = [
    ("OperationNotPermitted", 400, True),
    ("IncorrectInstanceState", 400, True),
    ("UnsupportedOperation", 400, True),
    ("UnauthorizedOperation", 403, True),
    ("InvalidParameterValue", 400, True),
    ("InvalidGroup.NotFound", 400, True),
    ("RequestLimitExceeded", 503, False),
    ("ThrottlingException", 400, False),
    ("InternalError", 500, False),
    ("Unavailable", 503, False),
    ("ExpiredToken", 400, False),
    ("RequestExpired", 400, False),
    ("AuthFailure", 401, False),
    ("PendingVerification", 400, False),
]


@pytest.mark.parametrize(("code", "status", "is_divided"), CODES)
def test_a_batch_is_divided_only_if_a_single_machine_may_be_the_reason(
    code: str, status: int, *, is_divided: bool
) -> None:
    ids = some_ids(100)
    calls: list[int] = []

    def call(sent: list[str]) -> None:
        calls.append(len(sent))
        if ids[3] in sent:
            raise refusal(code, "no", status)

    if is_divided:
        assert change_batches(ids, call, SIZE).keys() == {ids[3]}
    else:
        with pytest.raises(CloudError) as raised:
            change_batches(ids, call, SIZE)
        assert (raised.value.code, calls) == (code, [100])


def test_a_call_without_an_answer_is_not_divided() -> None:
    calls: list[int] = []

    def call(sent: list[str]) -> None:
        calls.append(len(sent))
        raise ConnectTimeoutError(endpoint_url="http://ec2")

    with pytest.raises(CloudError) as raised:
        change_batches(some_ids(300), call, SIZE)
    assert (raised.value.category, calls) == ("transient", [250])


def throttled_after(cloud: Cloud, calls: int) -> Callable[[list[str]], object]:
    def call(sent: list[str]) -> object:
        if len(cloud.calls) >= calls:
            raise refusal("RequestLimitExceeded", "slow down", 503)
        return cloud.end(sent)

    return call


def test_what_is_known_is_kept_if_the_rest_is_throttled() -> None:
    ids = some_ids(500)
    cloud = Cloud([ids[5]], named=1)
    refused = change_batches(ids, throttled_after(cloud, 2), SIZE)
    assert {name for name, error in refused.items() if error.category == "throttled"} == {*ids[250:]}
    assert refused[ids[5]].code == PROTECTED
    assert len(cloud.ended) == 249


@pytest.mark.parametrize("named", [0, 1, 100])
def test_unknown_ids_are_ignored_and_the_others_end(named: int) -> None:
    ids = some_ids(SIZE)
    cloud = Cloud(ids[40:43], code="InvalidInstanceID.NotFound", named=named)
    assert end(cloud, ids) == {}
    assert cloud.ended == {*ids} - {*ids[40:43]}


def test_a_start_without_capacity_for_one_machine_is_not_tried_for_the_rest() -> None:
    ids = some_ids(8)
    cloud = Cloud(ids, code="InsufficientInstanceCapacity")
    assert end(cloud, ids) == dict.fromkeys(ids, "InsufficientInstanceCapacity")
    assert [len(call) for call in cloud.calls] == [8, 4, 2, 1]


def test_a_description_finds_the_known_machines_and_raises_what_is_no_unknown_id() -> None:
    ids = some_ids(100)
    cloud = Cloud(ids[::7], code="InvalidInstanceID.NotFound")
    assert sorted(each_batch(ids, cloud.end)) == sorted({*ids} - {*ids[::7]})
    with pytest.raises(CloudError):
        list(each_batch(ids, Cloud(ids[:1]).end))
