"""Addresses that everybody knows and that lead to nobody: the public name servers."""

import ipaddress

PUBLIC_NAME_SERVERS = frozenset(
    ipaddress.ip_address(address)
    for address in (
        "8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "149.112.112.112", "208.67.222.222", "208.67.220.220",
        "2001:4860:4860::8888", "2001:4860:4860::8844", "2606:4700:4700::1111", "2606:4700:4700::1001",
        "2620:fe::fe", "2620:fe::9", "2620:119:35::35", "2620:119:53::53",
    )
)  # fmt: skip
