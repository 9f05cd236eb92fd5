from pathlib import Path

from penstock.common.clock import SECOND_NS
from penstock.common.options import load_config, markdown_page, option_value, options_of
from penstock.nsqlookupd.options import NsqlookupdOptions

# Defaults of a stock nsqlookupd, except for those that depend on the machine.
NSQ_DEFAULTS: dict[str, object] = {
    "http_address": "0.0.0.0:4161",
    "inactive_producer_timeout": 300 * SECOND_NS,
    "log_level": 2,
    "log_prefix": "[nsqlookupd] ",
    "tcp_address": "0.0.0.0:4160",
    "tombstone_lifetime": 45 * SECOND_NS,
}


def test_the_defaults_are_those_of_nsq() -> None:
    options = NsqlookupdOptions()

    assert {key: option_value(options, key) for key in NSQ_DEFAULTS} == NSQ_DEFAULTS


def test_every_flag_of_nsq_exists() -> None:
    flags = {declared.flag for declared in options_of(NsqlookupdOptions)}

    assert not {"version", "config", "verbose", "broadcast-address"} - flags


def test_a_config_file_of_nsq_is_read(tmp_path: Path) -> None:
    config = tmp_path / "nsqlookupd.cfg"
    config.write_text(
        'tcp_address = "127.0.0.1:1"\n'
        'log_level = "debug"\n'
        'inactive_producer_timeout = "1m"\n'
        "tombstone_lifetime = 1500\n"
    )

    options = NsqlookupdOptions(**load_config(NsqlookupdOptions, str(config)))

    assert ("127.0.0.1:1", 1) == (options.tcp_address, options.log_level)
    assert 60 * SECOND_NS == options.inactive_producer_timeout_ns
    assert SECOND_NS * 3 // 2 == options.tombstone_lifetime_ns


def test_the_documentation_of_options_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs/reference/nsqlookupd_options.md"

    assert markdown_page(NsqlookupdOptions, "nsqlookupd") == page.read_text()
