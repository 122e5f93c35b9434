"""DescribeInstances and DescribeInstanceStatus of the EC2 emulator for thousands of instances.

moto writes an instance again for each call, which takes milliseconds. Its pages count launches, so one page may have
all instances; those of EC2 count instances.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final

import msgspec
from moto.core.serialize import AttributePickerContext, EC2Serializer, XFormedAttributePicker
from moto.core.utils import get_service_model
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_dict_attribute_mapping, passes_filter_dict
from werkzeug.wrappers import Response

from leasehold_emulator.calls import Call
from leasehold_emulator.instances import EmulatedInstance, each_instance, find_all
from leasehold_emulator.type_pages import add_next, find_page, write_page

INSTANCES: Final = "DescribeInstances"
STATUSES: Final = "DescribeInstanceStatus"
MOST: Final = 1000
"""The most instances on a page."""
_FILTER: Final = re.compile(r"Filter\.(\d+)\.(?:Name|Value\.\d+)")
_STATE: Final = re.compile(r"<instanceState>.*?</instanceState>", re.DOTALL)
_KEEPING: Final = frozenset(
    {
        *("RunInstances", "CreateFleet", "TerminateInstances", "StopInstances", "StartInstances"),
        *("CreateTags", "CreateLaunchTemplate", "CreateLaunchTemplateVersion"),
    }
)
"""Calls that change no instance, or only what `_Written.key` contains."""


class _Written(msgspec.Struct, frozen=True):
    """The XML of an instance before and after its state, and the values of which the XML depends (`key`)."""

    key: tuple[object, ...]
    before: str
    after: str


class _Picker(XFormedAttributePicker):
    """moto's search for the attribute that has the value of a field. It remembers under which names the attribute may
    be found, because moto derives these names again for each field of each instance.
    """

    def __init__(self) -> None:
        super().__init__(response_transformers=EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER)
        self._names: dict[tuple[type, str, object], tuple[str, ...]] = {}

    def get_possible_keys(self, context: AttributePickerContext) -> Iterable[str]:  # type: ignore[override]
        """Return the names, as moto does."""
        key = (type(context.obj), context.key, context.shape)
        found = self._names.get(key)
        if found is None:
            found = self._names[key] = tuple(dict.fromkeys(super().get_possible_keys(context)))
        return found


class InstancePages:
    """Answers the two calls. Not thread-safe; the middleware uses it under its lock."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}
        service = get_service_model("ec2")
        self._model = service.operation_model(INSTANCES)
        self._serializer = EC2Serializer(operation_model=self._model, value_picker=_Picker())
        self._statuses = EC2Serializer(operation_model=service.operation_model(STATUSES), value_picker=_Picker())

    def note(self, call: Call) -> None:
        """Forget what was written if this call may have changed an instance."""
        if not call.action.startswith(("Describe", "Get")) and call.action not in _KEEPING:
            self._written.clear()

    def clear(self) -> None:
        """Forget all instances."""
        self._written.clear()

    def answer(self, call: Call, forward: Callable[[Call], Response]) -> Response:
        """Return the answer to one of the two calls. `forward`: a function that lets moto answer a call. moto answers
        calls with unknown ids or filters.
        """
        filters = _read_filters(call)
        found = self._find(call, filters)
        if found is None:
            return forward(call)
        if call.instances:
            return self._write(call, list(found), None)
        first, most = find_page(call, MOST)
        page = list(islice((each for each in found if each.number > first), most + 1))
        return self._write(call, page[:most], page[most - 1].number if len(page) > most else None)

    def _find(self, call: Call, filters: dict[str, list[str]]) -> Iterator[EmulatedInstance] | None:
        """Yield the instances that a call concerns, oldest first. Return None if moto has to answer the call."""
        is_known = all(name.startswith("tag:") or name in filter_dict_attribute_mapping for name in filters)
        if not is_known or (call.action == STATUSES and filters):
            return None
        if call.instances:
            named = find_all(call.instances)
            there = [each for each in named.values() if each.life.region == call.region and not each.is_hidden]
            if "MaxResults" in call.parameters or len(there) < len(set(call.instances)):
                return None
        else:
            there = [
                each
                for region, each in each_instance()
                if region == call.region and isinstance(each, EmulatedInstance) and not each.is_hidden
            ]
        shows_all = call.action == INSTANCES or call.parameters.get("IncludeAllInstances") == "true"
        running = there if shows_all else [each for each in there if each.is_running()]
        return (each for each in running if passes_filter_dict(each, filters))

    def _write(self, call: Call, instances: Sequence[EmulatedInstance], following: int | None) -> Response:
        if call.action == STATUSES:
            body = self._statuses.serialize({"InstanceStatuses": instances})["body"]
            return add_next(Response(body, content_type="text/xml;charset=UTF-8"), STATUSES, following)
        launches = (
            f"<item><reservationId>{launch}</reservationId><ownerId>{members[0].owner_id}</ownerId><groupSet/>"
            f"<instancesSet>{''.join(map(self._write_instance, members))}</instancesSet></item>"
            for launch, group in groupby(instances, lambda each: each.launch)
            for members in [list(group)]
        )
        return write_page(INSTANCES, f"<reservationSet>{''.join(launches)}</reservationSet>", following)

    def _write_instance(self, instance: EmulatedInstance) -> str:
        tags = instance.ec2_backend.tags.get(instance.id, {})
        reason, addresses = instance.state_reason, (instance.private_ip_address, instance.public_ip_address)
        key = (*addresses, instance.instance_type, instance.state_transition_reason, reason.code, *tags.items())
        written = self._written.get(instance.id)
        if written is None or written.key != key:
            before, after = _STATE.split(self._render(instance), maxsplit=1)
            written = self._written[instance.id] = _Written(key, before, after)
        state = instance.instance_state
        shown = f"<instanceState><code>{state.code}</code><name>{state.name}</name></instanceState>"
        return f"{written.before}{shown}{written.after}"

    def _render(self, instance: EmulatedInstance) -> str:
        """Return moto's XML of one instance."""
        document: dict[str, Any] = {}
        answer = {"Reservations": [{"Instances": [instance]}]}
        # moto has no public way to write a part of an answer.
        self._serializer._serialize(document, answer, self._model.output_shape, "")  # noqa: SLF001
        item = document["reservationSet"]["item"][0]["instancesSet"]["item"][0]
        text: str = self._serializer._serialize_body({"item": item})  # noqa: SLF001
        return text.partition("\n")[2]


def _read_filters(call: Call) -> dict[str, list[str]]:
    """Return filter -> its values."""
    names, values = dict[str, str](), dict[str, list[str]]()
    for key, value in call.parameters.items():
        if match := _FILTER.fullmatch(key):
            if key.endswith(".Name"):
                names[match[1]] = value
            else:
                values.setdefault(match[1], []).append(value)
    return {name: values.get(number, []) for number, name in names.items()}
