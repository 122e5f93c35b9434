"""The devices of a host and the commands that have them."""

import pytest

from leasehold.work.devices import Devices, NoDevice


def test_a_lease_gets_the_first_devices_that_no_other_command_has() -> None:
    used = [{"gpus": ["0"], "fpgas": ["b"]}, {"gpus": ["2"]}]
    devices = Devices({"fpgas": ("a", "b", "c")})
    assert devices.choose({"gpus": 2.0, "cpus": 8.0}, used) == {"gpus": ["1", "3"], "fpgas": []}
    assert devices.choose({"fpgas": 2.0}, used) == {"fpgas": ["a", "c"]}


def test_a_lease_without_whole_devices_gets_none() -> None:
    assert Devices().choose({"gpus": 0.5}, []) == {}
    assert Devices().choose({"cpus": 2.0}, []) == {}
    assert Devices({"gpus": ("x",)}).choose({"gpus": 0.5}, []) == {}
    assert Devices().choose({"gpus": 0.0}, []) == {"gpus": []}


def test_too_few_devices_are_an_error() -> None:
    with pytest.raises(NoDevice, match="gpus: the lease needs 2 devices, and 1 of this host are free"):
        Devices({"gpus": ("a", "b")}).choose({"gpus": 2.0}, [{"gpus": ["a"]}])
