"""Read and check `leasehold.toml`: the settings of the processes, the rules and the simulated cloud.

Each process reads its settings from this file. `leasehold apply` writes the rules to the database.
"""

import copy
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from scheduler.model.input_texts import parse_toml
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules, read_rules
from scheduler.model.schedules import OVERRIDES, find_clock_change, find_overlap, find_own_overlap, show_instant
from scheduler.model.validation import Fault, InvalidInputError, fault, format_path, read_document, show, suggest
from scheduler.policy.capacity.fits import fits
from scheduler.protocol.input_files import read_input_text
from scheduler.protocol.loopback import is_loopback
from scheduler.simulation.cloud_documents import CloudDocument, read_simulated_cloud
from workers.ec2.user_data import VARIABLES, render_user_data
from workers.settings import Settings, read_settings

PATH_VARIABLE: Final = "LEASEHOLD_CONFIG"
USUAL_PATH: Final = Path("leasehold.toml")
_RULES: Final = tuple(Rules.model_fields)
_KNOWN: Final = (*Settings.model_fields, *_RULES, "cloud")
_POSITION: Final = re.compile(r"(.*) \(at (line \d+, column \d+|end of document)\)", re.DOTALL)

OUR_TAGS: Final = "leasehold:"
"""Beginning of the names of the EC2 tags by which a machine names its cluster, pool, slot and launch."""

Part = TypeVar("Part")


@dataclass(frozen=True)
class Configuration:
    """The checked content of a `leasehold.toml`. If there is no file, `path` is None, all settings are defaults, and
    there is no pool.

    `rules_document` has the rules as written, with each user data file read into `user_data`. `rules` has the same
    rules with all defaults.
    """

    path: Path | None
    settings: Settings
    rules_document: dict[str, Any]
    rules: Rules
    cloud: CloudDocument


def find_configuration(path: Path | None = None) -> Path | None:
    """Return the path of the configuration file: `path`, else that of LEASEHOLD_CONFIG, else ./leasehold.toml if it
    exists.

    A file that `path` or LEASEHOLD_CONFIG names may be missing; reading it then fails. Returns None if there is no
    file.
    """
    named = path or os.environ.get(PATH_VARIABLE)
    if named:
        return Path(named)
    # A link whose target is missing is a file that cannot be read, and no reason for the defaults.
    return USUAL_PATH if os.path.lexists(USUAL_PATH) else None


def read_configuration(path: Path | None = None) -> Configuration:
    """Return the checked content of `leasehold.toml`; variables of the environment override its settings.

    Raises InvalidInputError with all faults in the settings, the rules and the simulated cloud.
    """
    found = find_configuration(path)
    document = _parse(found)
    faults = _unknown_tables(document)
    rules_document = {key: copy.deepcopy(document[key]) for key in _RULES if key in document}
    faults += _fill_in_user_data(rules_document, found.parent if found else Path())
    settings = _collect(faults, lambda: _read_settings(document))
    rules = _collect(faults, lambda: read_rules(rules_document, ""))
    table = document.get("cloud", {})
    # Outages are checked against the pools if the rules are valid.
    cloud = _collect(
        faults,
        lambda: read_document(CloudDocument, table, "cloud") if rules is None else read_simulated_cloud(table, rules),
    )
    for name, pool in rules.pools.items() if rules else ():
        if pool.ec2.user_data is not None:
            empty = dict.fromkeys(VARIABLES, "")
            _collect(faults, partial(render_user_data, pool.ec2.user_data, empty, f"pools.{name}.ec2.user_data"))
    faults += find_contradictions(rules) if rules else []
    if faults or settings is None or rules is None or cloud is None:
        raise InvalidInputError(faults)
    return Configuration(found, settings, rules_document, rules, cloud)


def load_settings(path: Path | None = None) -> Settings:
    """Return only the settings of `leasehold.toml`, for a process that reads its rules from the database.

    Raises InvalidInputError for a file that cannot be read, an unknown table or a wrong setting. The content of the
    rules is not checked.
    """
    document = _parse(find_configuration(path))
    faults = _unknown_tables(document)
    settings = _collect(faults, lambda: _read_settings(document))
    if faults or settings is None:
        raise InvalidInputError(faults)
    return settings


def read_cloud(path: Path | None = None) -> dict[str, Any]:
    """Return the `[cloud]` table (the simulated cloud) of `leasehold.toml` as written, or {} if there is none.

    Raises InvalidInputError if the file cannot be read or the table has a wrong value.
    """
    table: dict[str, Any] = _parse(find_configuration(path)).get("cloud", {})
    read_document(CloudDocument, table, "cloud")
    return table


def check_configuration(path: Path | None = None) -> list[Fault]:
    """Return all faults of `leasehold.toml`; [] if the file can be applied."""
    try:
        read_configuration(path)
    except InvalidInputError as error:
        return list(error.faults)
    return []


def find_warnings(configuration: Configuration) -> list[Fault]:
    """Return a warning for each setting or rule of `leasehold.toml` that is allowed but is probably a mistake."""
    rules, metrics = configuration.rules, configuration.settings.metrics
    found = [one for name, pool in rules.pools.items() for one in _pool_warnings(f"pools.{name}", pool)]
    if not rules.pools:
        found.append(Fault("pools", "at least one pool", "none"))
    if not is_loopback(metrics.host):
        found.append(Fault("metrics.host", "a loopback address (there is no password)", show(metrics.host)))
    return found


def _pool_warnings(path: str, pool: Pool) -> Iterator[Fault]:
    if pool.max_slots is not None and pool.target_warm_slots > pool.max_slots:
        yield Fault(f"{path}.target_warm_slots", f"at most max_slots ({pool.max_slots})", str(pool.target_warm_slots))
    if not pool.is_elastic:
        for key in ("min_slots", "target_warm_slots", "offerings"):
            if value := getattr(pool, key):
                yield Fault(
                    f"{path}.{key}",
                    "nothing in a static pool (hosts register themselves)",
                    f"{len(value)} of them" if key == "offerings" else str(value),
                )
        yield from find_misfits(path, pool)
    else:
        yield from _launch_warnings(path, pool)
    yield from _schedule_warnings(path, pool, time.time())
    if pool.probe.kind == "none" and pool.probe.port is not None:
        yield Fault(f"{path}.probe.port", "a probe of kind tcp or http beside a port", "kind none")


def _schedule_warnings(path: str, pool: Pool, now: float) -> Iterator[Fault]:
    """Yield a warning for windows of schedules that overlap, or that a change of the clock makes longer or shorter, in
    the year after `now`.
    """
    for index, schedule in enumerate(pool.schedules):
        where = f"{path}.schedules[{index}]"
        if (at := find_own_overlap(schedule, now)) is not None:
            yield Fault(
                where,
                "windows that end before the next window begins (overlapping windows count as one)",
                f"one that is open when the next begins, {show_instant(schedule, at)}",
            )
        if (window := find_clock_change(schedule, now)) is not None:
            yield Fault(
                f"{where}.duration",
                "no change of the clock in a window (`until`, in place of `duration`, keeps the time of day)",
                " to ".join(show_instant(schedule, each) for each in window),
            )
        for other, earlier in enumerate(pool.schedules[:index]):
            keys = [key for key in OVERRIDES if None not in {getattr(schedule, key), getattr(earlier, key)}]
            if keys and (at := find_overlap(earlier, schedule, now)) is not None:
                yield Fault(
                    f"{where}.{keys[0]}",
                    f"no window that overlaps with one of schedules[{other}] (this one counts)",
                    show_instant(schedule, at),
                )


def _launch_warnings(path: str, pool: Pool) -> Iterator[Fault]:
    ec2 = pool.ec2
    if not (ec2.launch_template or ec2.image):
        yield Fault(f"{path}.ec2.image", "an image or a launch_template (a launch needs one)", "neither")
    if ec2.launch_template and ec2.security_groups:
        yield Fault(
            f"{path}.ec2.security_groups",
            "no security groups beside a launch_template, which names its own",
            f"{len(ec2.security_groups)} of them",
        )


def find_contradictions(rules: Rules) -> Iterator[Fault]:
    """Yield a fault, with the path of the key to change, for each rule that contradicts another rule, and for each EC2
    tag whose name begins with OUR_TAGS.
    """
    for name, pool in rules.pools.items():
        if pool.is_elastic:
            yield from find_misfits(f"pools.{name}", pool)
            if pool.ec2.launch_template and pool.ec2.volume_gib and not pool.ec2.root_device:
                yield Fault(
                    f"pools.{name}.ec2.root_device",
                    "`root_device` beside `volume_gib` and a launch_template, whose image may have any",
                    "nothing",
                )
            for tag in pool.ec2.tags:
                # Such a tag would mark the machine as that of another owner.
                if tag.startswith(OUR_TAGS):
                    yield Fault(f"pools.{name}.ec2.tags.{tag}", f"a tag that does not begin with {OUR_TAGS}", show(tag))
    yield from _find_minima(rules)


def find_misfits(path: str, pool: Pool) -> Iterator[Fault]:
    """Yield a fault for each amount in the pool's `default_resources` that no slot of the pool could hold.

    If each amount fits alone, but no slot could hold all amounts together, yield one fault for all of them.
    """
    if pool.counts_leases_only or any(each.require is not None for each in pool.offerings):
        # The types of requirements are known only when they are applied.
        return
    own = pool.resources or {}
    # A new slot has the capacity of its offering, else that of the pool.
    held = [own if each.resources is None else each.resources for each in pool.offerings] or [own]
    names = {name for each in held for name in each}
    found = False
    for name, amount in pool.default_resources.items():
        largest = max((each.get(name, 0.0) for each in held), default=0.0)
        if amount > largest:
            found = True
            known = f"at most {largest:g}" if name in names else f"one of {', '.join(sorted(names)) or 'none'}"
            yield Fault(f"{path}.default_resources.{name}", f"{known} (no slot of the pool has more)", f"{amount:g}")
    if not found and not any(fits(pool.default_resources, each) for each in held):
        got = ", ".join(f"{name} {amount:g}" for name, amount in pool.default_resources.items())
        yield Fault(f"{path}.default_resources", "amounts that fit together into a slot of one offering", got)


def _find_minima(rules: Rules) -> Iterator[Fault]:
    """Yield a fault for each `max_slots` that is lower than the sum of the `min_slots` of its pools."""
    tables = {"scheduler": (rules.scheduler.max_slots, list(rules.pools.values()))}
    for name, own in rules.scheduler.system.items():
        tables[f"scheduler.system.{name}"] = own.max_slots, [p for p in rules.pools.values() if p.system == name]
    for path, (most, pools) in tables.items():
        least = sum(pool.min_slots for pool in pools if pool.is_elastic)
        if most and least > most:
            yield Fault(f"{path}.max_slots", f"at least the pools' min_slots ({least})", str(most))


def _collect(faults: list[Fault], read: Callable[[], Part]) -> Part | None:
    """Call `read` and return its result. If it raises InvalidInputError, append the faults of the error to `faults` and
    return None, so that further parts can be read.
    """
    try:
        return read()
    except InvalidInputError as error:
        faults += error.faults
        return None


def _parse(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return parse_toml(read_input_text(path))
    except OSError as error:
        raise fault(str(path), "a file that can be read", _describe(error)) from None
    except UnicodeDecodeError as error:
        raise fault(str(path), "a text in UTF-8", f"byte {error.start}") from None
    except ValueError as error:
        found = _POSITION.fullmatch(str(error))
        reason, position = found.groups() if found else (str(error), "")
        raise InvalidInputError(
            [Fault(f"{path}, {position}" if position else str(path), "valid TOML", show(reason))]
        ) from None


def _describe(error: OSError) -> str:
    """Return the text of an OSError. If a permission is missing, the text has the uid of the process, which users of a
    container need.
    """
    return f"{error.strerror} (as uid {os.geteuid()})" if isinstance(error, PermissionError) else str(error.strerror)


def _unknown_tables(document: dict[str, Any]) -> list[Fault]:
    return [
        Fault(format_path([key]), f"a known key{suggest(key, _KNOWN)}", show(key))
        for key in document
        if key not in _KNOWN
    ]


def _read_settings(document: dict[str, Any]) -> Settings:
    return read_settings({key: value for key, value in document.items() if key in Settings.model_fields})


def _fill_in_user_data(rules_document: dict[str, Any], folder: Path) -> Iterator[Fault]:
    """Read the file that each pool's `user_data_file` names, relative to `folder`, into the pool's key `user_data`.

    Yield a fault if a pool has both keys, or if the file cannot be read or is not UTF-8.
    """
    pools = rules_document.get("pools")
    for name, pool in pools.items() if isinstance(pools, dict) else ():
        ec2 = pool.get("ec2") if isinstance(pool, dict) else None
        file = ec2.get("user_data_file") if isinstance(ec2, dict) else None
        path = f"pools.{name}.ec2"
        if ec2 is None or not isinstance(file, str):
            continue
        if "user_data" in ec2:
            yield Fault(f"{path}.user_data", "no user_data beside user_data_file", "both")
            continue
        try:
            ec2["user_data"] = read_input_text(folder / file)
        except OSError as error:
            yield Fault(f"{path}.user_data_file", "a file that can be read", f"{show(file)}: {_describe(error)}")
        except ValueError:
            yield Fault(f"{path}.user_data_file", "the name of a text file in UTF-8", show(file))
