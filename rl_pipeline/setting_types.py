"""What a setting may be: types that refuse a wrong value and say what belongs in its place."""

import re
from datetime import date
from typing import Annotated, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from rl_pipeline.contracts.trajectory import Domain

SHARES_EXAMPLE = "coding=0.4,research=0.3,general=0.3"
_CRON_FIELD = r"[\d*/,\-A-Za-z]+"
# Minute, hour, day of the month, month, day of the week.
_CRON_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def _addresses(*schemes: str) -> AfterValidator:
    def check(addresses: str) -> str:
        for address in addresses.split(","):
            parts = urlsplit(address.strip())
            try:
                port_is_wrong = parts.port == 0
            except ValueError:
                port_is_wrong = True
            if parts.username or parts.password:
                raise ValueError("must not carry a user or password: people see addresses, use the other variables")
            if parts.scheme not in schemes or not parts.hostname or port_is_wrong:
                raise ValueError(f"must be an address such as {schemes[0]}://host:port")
        return addresses

    return AfterValidator(check)


def _storage_location(location: str) -> str:
    if not re.match(r"s3://[^/]|file:///|(?![A-Za-z0-9+.-]+:)", location):
        raise ValueError("must be s3://bucket/prefix, file:///directory or a directory")
    return location


def _five_cron_fields(cron: str) -> str:
    if not re.fullmatch(rf"\s*{_CRON_FIELD}(\s+{_CRON_FIELD}){{4}}\s*", cron):
        raise ValueError("must be a cron line of five fields such as '0 2 * * *'")
    for field, (least, most) in zip(cron.split(), _CRON_RANGES, strict=True):
        moments = re.sub(r"/\d+", "", field)  # a step may be any number
        if any(not least <= int(number) <= most for number in re.findall(r"\d+", moments)):
            raise ValueError(f"has {field} where a number from {least} to {most} belongs, as in '0 2 * * *'")
    return cron.strip()


def _shares_of_domains(text: str) -> str:
    shares = parsed_shares(text)
    wrong = sorted(set(shares) - set(get_args(Domain)))
    if wrong or not shares or any(not 0 <= share <= 1 for share in shares.values()) or not any(shares.values()):
        raise ValueError(f"must be shares from 0 to 1 of {', '.join(get_args(Domain))}, as in {SHARES_EXAMPLE}")
    return text


def parsed_shares(text: str) -> dict[str, float]:
    """The share of each name in `name=share,name=share`; none where the text is anything else."""
    try:
        return {name.strip(): float(share) for name, share in (pair.split("=") for pair in text.split(","))}
    except ValueError:
        return {}


def _three_counts(text: str) -> str:
    if not re.fullmatch(r"\d+,\d+,\d+", text):
        raise ValueError("must be three numbers such as 50,100,150")
    return text


def _s3_places(text: str) -> str:
    if not all(re.match(r"s3://[^/]", place.strip()) for place in text.split(",")):
        raise ValueError("must be s3://bucket/prefix, or several, separated by commas")
    return text


def _days_apart(text: str) -> str:
    try:
        first, last = (date.fromisoformat(day.strip()) for day in text.split("/"))
    except ValueError:
        first, last = date.max, date.min
    if last < first:
        raise ValueError("must be two days such as 2026-01-01/2026-01-28")
    return text


HttpUrl = Annotated[str, _addresses("http", "https")]
NatsUrl = Annotated[str, _addresses("nats", "tls", "ws", "wss")]
StorageLocation = Annotated[str, AfterValidator(_storage_location)]
Cron = Annotated[str, AfterValidator(_five_cron_fields)]
DomainShares = Annotated[str, AfterValidator(_shares_of_domains)]
StepSamples = Annotated[str, AfterValidator(_three_counts)]
S3Places = Annotated[str, AfterValidator(_s3_places)]
BasePeriod = Annotated[str, AfterValidator(_days_apart)]
Weight = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
