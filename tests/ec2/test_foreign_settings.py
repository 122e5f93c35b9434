"""Settings for other programs of the user have no effect on calls to an emulator on this host."""

from pathlib import Path
from urllib.request import Request

import pytest

from scheduler.protocol.loopback import is_local_url, open_local
from tests.ec2.conftest import REGION, Emulator
from workers.ec2 import clients
from workers.ec2.clients import Ec2Access, make_client
from workers.ec2.patterns import list_regions

NOWHERE = "http://127.0.0.1:9"
FOREIGN = {
    "HTTP_PROXY": NOWHERE,
    "http_proxy": NOWHERE,
    "ALL_PROXY": NOWHERE,
    "AWS_PROFILE": "no-such-profile",
    "AWS_DEFAULT_PROFILE": "no-such-profile",
    "AWS_CA_BUNDLE": "no-such-file",
    "AWS_RETRY_MODE": "no-such-mode",
    "AWS_DEFAULTS_MODE": "no-such-mode",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_ENDPOINT_URL": NOWHERE,
    "AWS_ENDPOINT_URL_EC2": NOWHERE,
    "AWS_SESSION_TOKEN": "of-another-account",
}


@pytest.mark.parametrize("name", [*FOREIGN, "AWS_CONFIG_FILE"])
def test_a_call_to_a_local_emulator_depends_on_no_variable_of_the_user(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    broken = tmp_path / "config"
    broken.write_text("no section")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(name, FOREIGN.get(name, str(broken)))
    clients._find_loader.cache_clear()
    list_regions.cache_clear()
    access = Ec2Access(region=REGION, endpoint_url=emulator.url, access_key_id="testing", secret_access_key="testing")
    assert make_client(access).describe_instances()["Reservations"] == []
    assert REGION in list_regions()
    with open_local(Request(f"{emulator.url}/_leasehold/health"), 10) as answer:  # noqa: S310 - loopback
        assert answer.status == 200


def test_keys_of_aws_need_no_profile_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    monkeypatch.setenv("HTTPS_PROXY", NOWHERE)
    clients._find_loader.cache_clear()
    list_regions.cache_clear()
    client = make_client(Ec2Access(region=REGION, access_key_id="testing", secret_access_key="testing"))
    assert client.meta.endpoint_url == f"https://ec2.{REGION}.amazonaws.com"
    # A proxy for AWS counts.
    assert client._endpoint.http_session._proxy_config._proxies["https"] == NOWHERE  # type: ignore[attr-defined]
    assert REGION in list_regions()


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:4579", True),
        ("http://127.8.0.1", True),
        ("http://localhost:1/x", True),
        ("http://LOCALHOST:1", True),
        ("http://[::1]:4579", True),
        ("http://emulator:4579", False),
        ("https://ec2.amazonaws.com", False),
        (None, False),
    ],
)
def test_a_local_url_names_a_loopback_address(url: str | None, is_local: bool) -> None:
    assert is_local_url(url) is is_local
