"""Launch templates that were just created, which EC2 does not find for some seconds."""

import re
from typing import Final

from leasehold_emulator.calls import Call
from leasehold_emulator.settings import FaultRule

CREATE: Final = "CreateLaunchTemplate"
_NAMED: Final = re.compile(r"(?:.*\.)?(LaunchTemplate(?:Name|Id))(?:\.\d+)?")
"""Parameters of calls that name a launch template."""
_ID: Final = re.compile(r"<launchTemplateId>([^<]+)<")
_ERRORS: Final = {
    "LaunchTemplateName": (
        "InvalidLaunchTemplateName.NotFoundException",
        "The specified launch template, with template name {}, does not exist.",
    ),
    "LaunchTemplateId": (
        "InvalidLaunchTemplateId.NotFound",
        "The specified launch template, with template ID {}, does not exist.",
    ),
}
"""Parameter -> EC2's code and message if there is no such template."""


class YoungTemplates:
    """The launch templates of all regions that EC2 does not find yet. Times are monotonic times in seconds. Not
    thread-safe; the middleware uses it under its lock.
    """

    def __init__(self) -> None:
        self._found_at: dict[tuple[str, str], float] = {}

    def add(self, call: Call, answer: str, found_at: float) -> None:
        """Record the template that a CreateLaunchTemplate made. EC2 finds it from `found_at` on."""
        for name in (call.parameters.get("LaunchTemplateName", ""), *_ID.findall(answer)):
            self._found_at[call.region, name] = found_at

    def find_missing(self, call: Call, now: float) -> FaultRule | None:
        """Return EC2's error for a call that names a template which EC2 does not find yet; None for any other call."""
        if not self._found_at or call.action == CREATE:
            return None
        for key, name in call.parameters.items():
            named = _NAMED.fullmatch(key)
            if named is not None and now < self._found_at.get((call.region, name), now):
                code, message = _ERRORS[named[1]]
                return FaultRule(code=code, message=message.format(name))
        return None

    def clear(self) -> None:
        """Forget all templates."""
        self._found_at.clear()
