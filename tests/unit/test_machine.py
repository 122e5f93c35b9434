"""The identity and resources that a machine reports."""

import os
from pathlib import Path

import pytest

from leasehold.agent.machine import find_machine_id, find_resources, find_slot_name, find_state_folder


def test_the_id_is_the_machines_own_and_shows_only_a_digest(tmp_path: Path) -> None:
    source = tmp_path / "machine-id"
    source.write_text("b08dfa6083e7567a1921a715000001fb\n")
    found = find_machine_id(tmp_path / "state", source)
    assert found == find_machine_id(tmp_path / "other", source)
    assert len(found) == 32
    assert "b08dfa60" not in found
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\n",
        b"uninitialized\n",  # an image that has not booted, see machine-id(5)
        b"00000000000000000000000000000000\n",
        b"\xff\xfe",
    ],
)
def test_without_a_machine_id_a_random_one_is_made_once_and_kept(content: bytes | None, tmp_path: Path) -> None:
    source = tmp_path / "machine-id"
    if content is not None:
        source.write_bytes(content)
    found = find_machine_id(tmp_path / "state", source)
    assert found == find_machine_id(tmp_path / "state", source)
    assert found != find_machine_id(tmp_path / "other", source)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["machine-id"]


def test_an_emptied_id_file_gets_a_new_id(tmp_path: Path) -> None:
    (tmp_path / "machine-id").touch()
    found = find_machine_id(tmp_path, tmp_path / "none")
    assert found
    assert found == find_machine_id(tmp_path, tmp_path / "none")


def test_the_id_file_is_in_the_users_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_state_folder() == tmp_path / "leasehold"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert find_state_folder() == Path.home() / ".local" / "state" / "leasehold"


def test_a_folder_in_place_of_the_machine_id_is_no_id(tmp_path: Path) -> None:
    """Docker makes one if the file that is mounted is missing."""
    (tmp_path / "machine-id").mkdir()
    assert find_machine_id(tmp_path / "state", tmp_path / "machine-id")
    assert (tmp_path / "state" / "machine-id").is_file()


def test_the_resources_are_those_that_the_process_may_use() -> None:
    found = find_resources()
    assert 0 < found["cpus"] <= len(os.sched_getaffinity(0))
    assert 64 < found["memory_mib"] < 2**30
    assert find_slot_name()


V1, V2 = "rw - cgroup cgroup rw,", "rw - cgroup2 cgroup2 rw"
NONE_V1 = "9223372036854771712"
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        # version 2: the process's own group
        (
            ["0::/job"],
            [f"1 2 0:1 / /cg {V2}"],
            {"cg/job/cpu.max": "50000 100000", "cg/job/memory.max": f"{512 * MIB}"},
            {"cpus": 0.5, "memory_mib": 512},
        ),
        # version 2: the groups above limit it further, and a group may have no limit
        (
            ["0::/a/b/c"],
            [f"1 2 0:1 / /cg {V2}"],
            {
                "cg/a/b/c/cpu.max": "max 100000",
                "cg/a/b/cpu.max": "30000 100000",
                "cg/a/cpu.max": "90000 100000",
                "cg/a/b/c/memory.max": "max",
                "cg/a/b/memory.max": f"{100 * MIB}",
                "cg/a/memory.max": f"{64 * MIB + 1}",
            },
            {"cpus": 0.3, "memory_mib": 64},
        ),
        # version 2 in a container with a namespace for cgroups: the mount is the container's own group
        (
            ["0::/"],
            [f"1 2 0:1 / /cg {V2}"],
            {"cg/cpu.max": "10000 80000", "cg/memory.max": f"{256 * MIB}"},
            {"cpus": 0.125, "memory_mib": 256},
        ),
        # version 1, a hierarchy for each controller; the limit stands above the process's group
        (
            ["4:memory:/pod/box", "3:cpu,cpuacct:/pod/box", "1:name=systemd:/"],
            [f"1 2 0:1 / /cg/cpu {V1}cpuacct,cpu", f"1 2 0:2 / /cg/memory {V1}memory"],
            {
                "cg/cpu/pod/box/cpu.cfs_quota_us": "-1",
                "cg/cpu/pod/box/cpu.cfs_period_us": "100000",
                "cg/cpu/pod/cpu.cfs_quota_us": "25000",
                "cg/cpu/pod/cpu.cfs_period_us": "50000",
                "cg/memory/pod/box/memory.limit_in_bytes": NONE_V1,
                "cg/memory/pod/memory.limit_in_bytes": f"{128 * MIB}",
            },
            {"cpus": 0.5, "memory_mib": 128},
        ),
        # version 1 in a container without such a namespace: the path is that of the host, and the mount a part of it;
        # only the kernel's sum shows the limit of a group above
        (
            ["4:memory:/docker/box", "3:cpu:/docker/box"],
            [f"1 2 0:1 /docker/box /cg/cpu {V1}cpu", f"1 2 0:2 /docker/box /cg/memory {V1}memory"],
            {
                "cg/cpu/cpu.cfs_quota_us": "70000",
                "cg/cpu/cpu.cfs_period_us": "100000",
                "cg/memory/memory.limit_in_bytes": NONE_V1,
                "cg/memory/memory.stat": f"cache 1\nhierarchical_memory_limit {96 * MIB}\n",
            },
            {"cpus": 0.7, "memory_mib": 96},
        ),
        # both versions at once; the folder of the mount has a space in its name
        (
            ["2:cpu:/one", "0::/two"],
            [f"1 2 0:1 / /cg/my\\040cpu {V1}cpu", f"1 2 0:2 / /cg/unified {V2}"],
            {
                "cg/my cpu/one/cpu.cfs_quota_us": "40000",
                "cg/my cpu/one/cpu.cfs_period_us": "100000",
                "cg/unified/two/memory.max": f"{80 * MIB}",
            },
            {"cpus": 0.4, "memory_mib": 80},
        ),
        # a third of a cpu is rounded down
        (
            ["0::/w"],
            [f"1 2 0:1 / /cg {V2}"],
            {"cg/w/cpu.max": "33333 100000", "cg/w/memory.max": f"{2 * MIB - 1}"},
            {"cpus": 0.333, "memory_mib": 1},
        ),
    ],
)
def test_the_resources_are_the_least_of_all_cgroups(
    groups: list[str], mounts: list[str], files: dict[str, str], expected: dict[str, float], tmp_path: Path
) -> None:
    for name, text in {
        "proc/self/cgroup": "\n".join(groups),
        "proc/self/mountinfo": "\n".join(["22 1 8:1 / / rw - ext4 /dev/sda rw", *mounts]),
        **files,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert find_resources(tmp_path) == expected


@pytest.mark.parametrize(
    "files",
    [
        {},  # as on macOS
        {"proc/self/cgroup": "nonsense\n0::/w\n\xff:", "proc/self/mountinfo": "\n1 2\n1 2 0:1 / /cg - cgroup2\n"},
        {
            "proc/self/cgroup": "0::/../other",
            "proc/self/mountinfo": f"1 2 0:1 / /cg {V2}",
            "cg/cpu.max": "0 0",
            "cg/memory.max": "a lot",
        },
    ],
)
def test_without_readable_cgroups_the_resources_are_those_of_the_machine(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert find_resources(tmp_path) == {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB,
    }
