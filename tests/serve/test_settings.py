"""Settings: the order of the sources, the forms of values, and one line for each thing that is wrong."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from curbstone.net.address import Address, parse_address
from curbstone.settings import OPTIONS, SettingsError, load, warnings


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "PORT",
        *(f"NARCONI_{rest}" for rest in ("MAX_MESSAGE_SIZE", "MAX_MESSAGE_TTL", "DEFAULT_LIMIT", "AMQP_URI")),
    ):
        monkeypatch.delenv(name, raising=False)
    for name in OPTIONS:
        monkeypatch.delenv(f"CURBSTONE_{name.upper()}", raising=False)


def refusal(**command_line: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(command_line)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_defaults_are_the_documented_ones() -> None:
    settings = load({})
    assert settings.data == Path("curbstone-data")
    assert (settings.cap, settings.max_cap) == (10 * 1024 * 1024, 10 << 30)
    assert str(settings.sync) == "always"
    assert settings.stomp_addr == (Address("127.0.0.1", 61613),)
    assert settings.http_addr == (Address("127.0.0.1", 8080),)
    assert settings.mqks_addr == (Address("127.0.0.1", 25000),)
    assert settings.mq_delay == 10
    assert settings.max_message_size == 1024 * 1024
    assert settings.max_ttl == 3600
    assert settings.default_limit == 10
    assert (settings.max_staged, settings.staged_ttl) == (1 << 30, 3600)
    assert settings.single_queue == ""
    assert settings.cors_origin == ()
    assert not settings.insecure


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        load({}).cap = 1  # type: ignore[misc]


def test_setting_sources_have_a_fixed_precedence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "curbstone.toml"

    def limit(**command_line: object) -> int:
        return load({"config": str(file), **command_line}).default_limit

    file.write_text("")
    assert limit() == 10
    file.write_text("default-limit = 20")
    assert limit() == 20
    monkeypatch.setenv("NARCONI_DEFAULT_LIMIT", "30")
    assert limit() == 30
    monkeypatch.setenv("CURBSTONE_DEFAULT_LIMIT", "40")
    assert limit() == 40
    assert limit(default_limit="50") == 50


def test_each_setting_can_come_from_the_file_with_either_spelling(tmp_path: Path) -> None:
    file = tmp_path / "curbstone.toml"
    file.write_text(
        'data = "/somewhere"\ncap = 1048576\nsync = "interval:20"\nstomp-addr = ":0"\nhttp_addr = ""\nmqks-addr = ""\n'
        'max-message-size = "64KiB"\nmax-ttl = 1.5\ndefault-limit = 3\nsingle-queue = "one"\n'
        'cors-origin = ["http://a.example", "https://b.example:8443"]\nhttp-host = ["q.example"]\n'
        'max-staged = "2GiB"\nstaged_ttl = 90\ninsecure = true\nlog-level = "debug"\n'
    )
    settings = load({"config": str(file)})
    assert settings.data == Path("/somewhere")
    assert (settings.cap, settings.max_message_size) == (1048576, 65536)
    assert str(settings.sync) == "interval:20"
    assert (settings.stomp_addr, settings.http_addr) == ((Address("127.0.0.1", 0),), ())
    assert (settings.max_ttl, settings.default_limit) == (1.5, 3)
    assert (settings.max_staged, settings.staged_ttl) == (2 << 30, 90)
    assert settings.single_queue == "one"
    assert settings.cors_origin == ("http://a.example", "https://b.example:8443")
    assert settings.http_host == ("q.example",)
    assert settings.insecure
    assert settings.log_level == "debug"


def test_each_setting_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "curbstone.toml"
    file.write_text("default-limit = 7")
    for name, value in {
        "CONFIG": str(file),
        "DATA": "/somewhere",
        "CAP": "2MiB",
        "SYNC": "never",
        "STOMP_ADDR": "",
        "HTTP_ADDR": "[::1]:0",
        "MQKS_ADDR": "",
        "MAX_STAGED": "64MiB",
        "STAGED_TTL": "1.5",
        "CORS_ORIGIN": "http://a.example, http://b.example",
        "INSECURE": "1",
    }.items():
        monkeypatch.setenv(f"CURBSTONE_{name}", value)
    settings = load({})
    assert settings.default_limit == 7
    assert settings.data == Path("/somewhere")
    assert settings.cap == 2 * 1024 * 1024
    assert str(settings.sync) == "never"
    assert (settings.stomp_addr, settings.http_addr) == ((), (Address("::1", 0),))
    assert (settings.max_staged, settings.staged_ttl) == (64 << 20, 1.5)
    assert settings.cors_origin == ("http://a.example", "http://b.example")
    assert settings.insecure


def test_the_older_names_are_honoured_and_an_empty_one_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9090")
    monkeypatch.setenv("NARCONI_MAX_MESSAGE_SIZE", "65536")
    monkeypatch.setenv("NARCONI_MAX_MESSAGE_TTL", "60")
    monkeypatch.setenv("NARCONI_DEFAULT_LIMIT", "")
    settings = load({})
    assert settings.http_addr == (Address("127.0.0.1", 9090),)
    assert (settings.max_message_size, settings.max_ttl, settings.default_limit) == (65536, 60, 10)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:61613", Address("127.0.0.1", 61613)),
        ("localhost:0", Address("localhost", 0)),
        (":61613", Address("127.0.0.1", 61613)),
        ("[::1]:8080", Address("::1", 8080)),
        ("0.0.0.0:65535", Address("0.0.0.0", 65535)),
        ("tls://:61614", Address("127.0.0.1", 61614, tls=True)),
        ("tls://[::]:0", Address("::", 0, tls=True)),
        ("proxy://10.0.0.1:80", Address("10.0.0.1", 80, proxy=True)),
        ("proxy+tls://10.0.0.1:80", Address("10.0.0.1", 80, tls=True, proxy=True)),
        ("", None),
        ("off", None),
    ],
)
def test_address_forms(text: str, address: Address | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["8080", "host", "host:", "host:x", "host:65536", "host:-1", "::1:80", "[::1]", "[::1:80", "a:b:1", ":٣"]
    + ["http://a:1", "tls+proxy://a:1", "tls:a:1", "://a:1", "TLS://a:1", "tls://", "tls://a", "tls://tls://a:1"],
)
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bad address"):
        parse_address(text)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1", ":1"])
def test_an_address_of_this_machine_only_needs_no_permission(address: str) -> None:
    load({"stomp_addr": address, "http_addr": address})


def test_default_addresses_are_local() -> None:
    settings = load({})
    listening = [*settings.stomp_addr, *settings.http_addr, *settings.mqks_addr]
    assert len(listening) == 3 and all(address.is_loopback for address in listening) and settings.is_loopback


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.1.5:1", "example.org:1", "localhost.example:1"])
@pytest.mark.parametrize("option", ["stomp_addr", "http_addr", "mqks_addr"])
def test_non_local_address_requires_insecure(option: str, address: str) -> None:
    reason = refusal(**{option: address})
    assert "--insecure" in reason
    assert "without a login" in reason
    assert getattr(load({option: address, "insecure": True}), option) == (parse_address(address),)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("cap", "10 apples", "--cap: bad size '10 apples'"),
        ("cap", "1KiB", "--cap: bad value '1KiB': expected a size from 64KiB to "),
        ("sync", "sometimes", "--sync: bad sync mode 'sometimes'"),
        ("stomp_addr", "nowhere", "--stomp-addr: bad address 'nowhere'"),
        ("http_addr", "nowhere", "--http-addr: bad address 'nowhere'"),
        ("mqks_addr", "nowhere", "--mqks-addr: bad address 'nowhere'"),
        ("max_message_size", "0", "--max-message-size: bad value '0': expected a size from 1 to 1GiB"),
        ("max_ttl", "-1", "--max-ttl: bad value '-1'"),
        ("max_ttl", "nan", "--max-ttl: bad value 'nan': expected a number of seconds from 0.001 to "),
        ("max_staged", "much", "--max-staged: bad size 'much'"),
        ("staged_ttl", "0", "--staged-ttl: bad value '0'"),
        ("mq_delay", "0", "--mq-delay: bad value '0'"),
        ("default_limit", "many", "--default-limit: bad value 'many': expected an integer from 1 to 100000"),
        ("single_queue", "no spaces", "--single-queue: bad queue name 'no spaces'"),
        ("cors_origin", ["app.example"], "--cors-origin: bad origin 'app.example'"),
        ("cors_origin", ["http://*.example"], "--cors-origin: bad origin 'http://*.example'"),
        ("otlp", "collector:4317", "--otlp: bad address 'collector:4317'"),
        ("log_level", "loud", "--log-level: bad value 'loud': expected debug, info, warning or error"),
        ("data", "", "--data: an empty path"),
        ("plaintext", "perhaps", "--plaintext: bad value 'perhaps': expected true or false"),
        ("colour", "red", "unknown setting 'colour'; there are data, engine,"),
        ("config", "/no/such/file", "can't read the config file /no/such/file: No such file or directory"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_option(option: str, value: object, reason: str) -> None:
    assert refusal(**{option: value}).startswith(reason)


def test_a_listener_may_have_several_addresses_from_each_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two = (Address("127.0.0.1", 1), Address("::1", 2, tls=True))
    file = tmp_path / "curbstone.toml"
    file.write_text('stomp-addr = [":1", "tls://[::1]:2"]\ntls-cert = "c.pem"')
    assert load({"config": str(file)}).stomp_addr == two
    monkeypatch.setenv("CURBSTONE_HTTP_ADDR", ":1, tls://[::1]:2")
    assert load({"tls_cert": "c.pem"}).http_addr == two
    assert load({"mqks_addr": [":1", "tls://[::1]:2"], "tls_cert": "c.pem", "http_addr": ""}).mqks_addr == two


def test_tls_and_proxy_settings_are_validated() -> None:
    assert refusal(stomp_addr="tls://:1").startswith("--stomp-addr: tls://127.0.0.1:1 needs a certificate: --tls-cert")
    assert refusal(http_addr="proxy://:1") == (
        "--http-addr: proxy://127.0.0.1:1 is for proxies, but no proxy is trusted; add --trusted-proxy"
    )
    assert refusal(tls_key="k.pem") == "--tls-key and --tls-client-ca need --tls-cert"
    assert refusal(trusted_proxy="10.0.0.1/8").startswith("--trusted-proxy: bad network '10.0.0.1/8'")
    assert load({"http_addr": "proxy://:1", "trusted_proxy": ["10.0.0.0/8", "::1"]}).trusted_proxy == (
        *("10.0.0.0/8", "::1"),
    )


def test_all_listeners_off_is_refused() -> None:
    assert refusal(stomp_addr="", http_addr="", mqks_addr="").startswith("nothing to listen on")


@pytest.mark.parametrize("name", ["CURBSTONE_DEFAULT_LIMIT", "NARCONI_DEFAULT_LIMIT"])
def test_a_bad_value_in_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "x")
    assert refusal().startswith(f"{name}: bad value 'x'")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            "capp = 1",
            "unknown key 'capp' in the config file {file}; there are data, engine, engine-password-file,",
        ),
        ('config = "other.toml"', "unknown key 'config'"),
        ("[serve]\ncap = 1", "unknown key 'serve'"),
        ("cap =", "the config file {file} is not TOML: "),
        ("cap = 5", "cap in the config file: bad value 5"),
        ("sync = 100", "sync in the config file: bad value 100: expected a string in quotes"),
        (
            "stomp-addr = 61613",
            "stomp-addr in the config file: bad value 61613: expected a string in quotes, or a list of them",
        ),
        ("cap = [1, 2]", "cap in the config file: bad value [1, 2]"),
    ],
)
def test_invalid_file_is_one_line_that_names_the_key(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "curbstone.toml"
    file.write_text(content)
    assert refusal(config=str(file)).startswith(reason.format(file=file))


def test_narconi_broker_setting_is_refused_without_printing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings() == []
    monkeypatch.setenv("NARCONI_AMQP_URI", "amqp://guest:SECRET@rabbit:5672/%2F")
    (line,) = warnings()
    assert line.startswith("NARCONI_AMQP_URI is ignored: Curbstone is the broker itself")
    assert "SECRET" not in line
    load({})  # it starts all the same


def test_non_local_address_with_users_requires_tls_or_plaintext(tmp_path: Path) -> None:
    users = {"users": str(tmp_path / "users.toml"), "stomp_addr": "0.0.0.0:1"}
    assert "--plaintext" in refusal(**users)
    assert load({**users, "plaintext": True}).users == tmp_path / "users.toml"
    assert load({**users, "stomp_addr": "127.0.0.1:1"}).is_loopback is True


def test_users_and_audit_settings_are_allowed_with_an_engine(tmp_path: Path) -> None:
    cluster = {"engine": "amqp://u:p@a/"}
    found = load({**cluster, "users": str(tmp_path / "users.toml"), "data": str(tmp_path)})
    assert (found.users, found.data) == (tmp_path / "users.toml", tmp_path)
    assert refusal(**cluster, data=str(tmp_path)) == (
        "--data: it can't be used with --engine: the cluster keeps the messages"
    )
