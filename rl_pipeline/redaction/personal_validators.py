"""Second looks at personal data: check digits, address ranges, and the words around a find.

A number is rarely personal by its digits alone. What these validators weigh is its shape, and the text around it: at
most `surroundings.NEAR` bytes to either side of a value, as far as the text goes.
"""

import ipaddress
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from rl_pipeline.redaction.name_servers import PUBLIC_NAME_SERVERS
from rl_pipeline.redaction.phone_validators import bare_phone, grouped_phone, international_phone, phone
from rl_pipeline.redaction.surroundings import (
    NEAR,
    after,
    before,
    digits_of,
    is_beside_a_placeholder,
    lead_on_line,
    value_span,
    words,
)

if TYPE_CHECKING:
    from rl_pipeline.redaction.validators import Validator


def email(value: bytes, match: re.Match[bytes]) -> bool:
    """A mailbox of a person or an organisation: no login of a remote, no file name, no product of matrices."""
    address = value.replace(b"%40", b"@")
    local, _, domain = address.rpartition(b"@")
    ending = domain.rpartition(b".")[2].lower()
    lead = before(match)
    if local.lower() in _LOGINS or ending in _NO_DOMAINS or _IN_URL.search(lead):
        return False
    if ending in _LOCAL_DOMAINS:
        return bool(_MAIL_NEAR.search(lead[-40:]))
    return ending in _DOMAINS or len(ending) == 2 or bool(_MAIL_WORD.search(lead)) or not _is_product(address, match)


def card(value: bytes, match: re.Match[bytes]) -> bool:
    """A number of a card's issuer; those that are short or rare only in the company of a word for cards."""
    digits = digits_of(value)
    if (digits in _TEST_CARDS and _is_named_as_test(match)) or is_beside_a_placeholder(match):
        return False
    if _CARD_WORD.search(lead_on_line(match)) or _CARD_WORD.search(after(match)[:60].partition(b"\n")[0]):
        return bool(_ANY_ISSUER.fullmatch(digits))
    lead, tail = before(match), after(match)
    if _OTHER_NUMBER.search(lead) or _ARGUMENT.search(lead) or _is_one_of_a_list(value, lead, tail):
        return False
    return bool(_MAIN_ISSUER.fullmatch(digits)) and not _is_calculated_with(lead, tail) and not _is_count(value)


def ssn(_: bytes, match: re.Match[bytes]) -> bool:
    """A number that the text does not give to an order, a part or the like."""
    return not _NUMBER_OF_THING.search(before(match))


def iban(value: bytes, _: re.Match[bytes]) -> bool:
    """The country's length and characters, and the remainder 1 that ISO 13616 asks for."""
    text = value.translate(None, b" -").upper()
    if _IBAN_LENGTHS.get(text[:2].decode()) != len(text) or (text[:2] in _IBANS_OF_DIGITS and not text[4:].isdigit()):
        return False
    return int("".join(str(int(character, 36)) for character in (text[4:] + text[:4]).decode())) % 97 == 1


def public_ipv6(value: bytes, _: re.Match[bytes]) -> bool:
    """An address of the public internet, written correctly, and not that of a name server which everybody uses."""
    try:
        address = ipaddress.IPv6Address(value.decode())
    except ValueError:
        return False
    return address.is_global and not address.is_multicast and address not in PUBLIC_NAME_SERVERS


def leads_to_somebody(value: bytes, match: re.Match[bytes]) -> bool:
    """A public IPv4 address that is no version, no object id, and not that of a name server which everybody uses."""
    lead = before(match)
    octets = [int(part) for part in value.split(b".")]
    if octets[:2] in ([1, 3], [2, 5]) or value.decode() in _NAME_SERVERS or _VERSION_WORD.search(lead[-24:]):
        return False
    if _IN_VECTOR_PATH.search(lead) or (lead.endswith(_BEFORE_NEW_VERSION) and _NEW_VERSION.search(lead)):
        return False
    looks_like_version = max(octets[:3]) < 40 or octets[1:] == [0, 0, 0]
    if not looks_like_version or _FORWARDED.search(lead) or _IP_LABEL.search(lead[-24:]):
        return True
    if _IP_WORD.search(lead[-24:]):
        return not _SPEAKS_OF_VERSIONS.search(lead)
    return lead[-1:] in (b"", b"\n") and after(match).startswith(b" - - [")


def street(value: bytes, match: re.Match[bytes]) -> bool:
    """A street whose word is plain, or one like Court and Place in the company of what else an address has."""
    lead, tail = before(match), after(match)
    number, comma, _ = value.partition(b",")
    if _PART_OF_A_TEXT.search(lead) or (comma and _YEAR.fullmatch(number)):
        return False
    if comma and number.isalnum() and not _FRENCH_STREET.search(value):
        is_ambiguous = lead[-1:] not in (b"", b'"', b"\n") and not _ADDRESS_WORD.search(lead[-40:])
        return not is_ambiguous and not _AMBIGUOUS_STREET.search(value)
    if not _AMBIGUOUS_STREET.search(value):
        return True
    stands_alone = lead[-1:] in (b"", b'"', b"\n") and tail[:1] in (b"", b'"', b"\\", b"\n")
    return stands_alone or bool(_ADDRESS_GOES_ON.match(tail) or _ADDRESS_WORD.search(lead[-40:]))


def unit(value: bytes, match: re.Match[bytes]) -> bool:
    """A suite of rooms behind its street, or one alone that is none of tests."""
    if value[:1].isdigit():
        return True
    return not _PARTS_OF_A_RUN.search(before(match)) and not _OUTCOME.match(after(match))


def city_and_zip(value: bytes, match: re.Match[bytes]) -> bool:
    """A zip code; where the state reads like a word, one of that state, or behind the rest of an address."""
    state, zip_code = value.rpartition(b", ")[2].split()
    regions = _ZIP_CODES_OF_WORDS.get(state)
    if regions is None or zip_code.startswith(regions):
        return True
    return bool(_HOUSE_BEFORE.search(before(match)) or _ADDRESS_WORD.search(before(match)[-40:]))


def identifier(value: bytes, _: re.Match[bytes]) -> bool:
    """A document's number has digits, and more of them than a count or a year."""
    return len(digits_of(value)) >= 5


def person(value: bytes, _: re.Match[bytes]) -> bool:
    """A person's name: no word that only begins a sentence, no role, no robot, no model."""
    return not any(word.lower().strip(b".,'-0123456789") in _NO_NAMES for word in value.split())


def _is_product(address: bytes, match: re.Match[bytes]) -> bool:
    """Whether what looks like an address with a rare ending is one of matrices: `query@keys.transpose(…)`."""
    local, _, domain = address.partition(b"@")
    is_code = _CALL_OR_INDEX.match(after(match)) is not None
    return is_code or len(local) < 3 or domain.partition(b".")[0].lower() in _OBJECTS


def _is_one_of_a_list(value: bytes, lead: bytes, tail: bytes) -> bool:
    """Whether a number behind a comma has only numbers of its length for neighbours, of which one is no card."""
    if not lead.endswith(b","):
        return False
    fields = [_LAST_FIELD.search(lead), _NEXT_FIELD.match(tail)]
    neighbours = [field[1] for field in fields if field]
    if not neighbours or not all(each.isdigit() and len(each) == len(value) for each in neighbours):
        return False
    near = (lead.rpartition(b"\n")[2] + tail.partition(b"\n")[0]).split(b",")
    numbers = [number for each in near if len(number := digits_of(each)) == len(value)]
    return not all(_MAIN_ISSUER.fullmatch(number) and _has_check_digit(number) for number in numbers)


def _is_calculated_with(lead: bytes, tail: bytes) -> bool:
    """Whether the number is a factor of a formula, and not only in Markdown's bold type."""
    if lead.endswith(b"*") and tail.startswith(b"*"):
        return False
    return bool(_FACTOR_FOLLOWS.match(tail) or _FACTOR_PRECEDES.search(lead))


def _is_count(value: bytes) -> bool:
    """Whether groups of digits only count on: `5430 5431 5432 5433`."""
    groups = [int(group) for group in value.split() if group.isdigit()]
    return len(groups) > 2 and len({second - first for first, second in pairwise(groups)}) == 1


def _has_check_digit(digits: bytes) -> bool:
    """Luhn's formula."""
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits.decode()[-2::-2])
    return (doubled + sum(map(int, digits.decode()[-1::-2]))) % 10 == 0


def _is_named_as_test(match: re.Match[bytes]) -> bool:
    """Whether the text says, before or behind placeholders too, that the number is for tests."""
    start, end = value_span(match)
    lead = match.string[max(0, start - 4 * NEAR) : start].rpartition(_BETWEEN_TEXTS)[2]
    return bool(_TEST_WORD.search(lead + b" " + match.string[end : end + 4 * NEAR].partition(_BETWEEN_TEXTS)[0]))


_BETWEEN_TEXTS = b"\n\x00\n"
_LOGINS = words("git hg svn")
_NO_DOMAINS = words(
    "png jpg jpeg gif svg webp ico pdf js jsx ts tsx mjs css scss html htm json yaml yml xml txt lock toml tar gz tgz"
    " zip"
    " whl jar so dll exe log csv ipynb cpp java class service socket target timer mount"
    " slice scope device swap automount bin pkl pickle pth onnx ckpt safetensors"
    " weight weights bias kernel matrix transpose values data shape grad inverse"
)
_LOCAL_DOMAINS = words("local internal localhost lan")
_MAIL_NEAR = re.compile(
    rb"(?i)(?<![a-z])(?:e-?mails?|mail(?:to|box|ed|ing)?|b?cc|recipients?|sender|contact)(?![a-z])|<$"
)
_OBJECTS = words("self cls params model module layer np jnp torch tf this super state config")
_CALL_OR_INDEX = re.compile(rb"[(\[]|\.\w")
_DOMAINS = words(
    "com net org edu gov mil int info biz name pro mobi asia app dev cloud tech online site store shop blog xyz top"
    " club"
    " live life world email mail company agency digital media news studio design work works space website group global"
    " international bank health care law legal consulting solutions services systems network software academy education"
    " university school example test invalid museum coop aero jobs travel london berlin paris amsterdam tokyo nyc"
)
_IN_URL = re.compile(rb"://[^\s/?#\"'<>]*$")
_MAIL_WORD = re.compile(rb"(?i)(?:mail|contact|from|to|cc)\W{1,6}$|<$")


_MAIN_ISSUER = re.compile(
    rb"4\d{15}|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    rb"|35\d{14}|6(?:011|5\d\d|4[4-9]\d|2\d\d)\d{12}"
)
_ANY_ISSUER = re.compile(
    rb"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[0689]\d{12}|35\d{14}|(?:2131|1800)\d{11}"
    rb"|(?:5[06-9]|6\d)\d{10,17}"
)
_CARD_WORD = re.compile(
    rb"(?i)(?<![a-z])(?:cards?|cc|visa|master ?card|maestro|amex|american express|discover|diners?|jcb|union ?pay"
    rb"|credit|debit"
    rb"|atm|pan|pay(?:ment|ing)?|charged?|billing|billed|purchase|balance|withdraw\w*|cvv|cvc|stolen)(?![a-z])"
    rb"|credit_?card|card_?num"
)
_OTHER_NUMBER = re.compile(
    rb"(?i)(?:order|tracking|invoice|ticket|trace|span|request|transaction|job|build|serial|sku|isbn|ean|upc|barcode"
    rb"|imei"
    rb"|message|user|account|time(?:stamp)?|seed|id|ids|size|offset|bytes|hash|checksum|version)"
    rb"[ _-]{0,2}(?:id|no\.?|num|number|nr\.?|#)?[\"'\\]{0,2}\W{0,4}$"
)
_ARGUMENT = re.compile(rb"(?i)(?<!values)(?<=[\w\])])\(\s?$")
_LAST_FIELD = re.compile(rb"(?:^|[,\[({\n])([^,\[({\n]+),$")
_NEXT_FIELD = re.compile(rb",([^,\])}\n]+)")
_FACTOR_FOLLOWS = re.compile(rb"\s?(?:\*\*?|[/^%])\s?[A-Za-z0-9(]")
_FACTOR_PRECEDES = re.compile(rb"[\w)]\s?(?:\*\*?|[/^%])\s?$")
_NUMBER_OF_THING = re.compile(
    rb"(?i)(?<![a-z])(?:order|invoice|ticket|part|item|sku|serial|model|tracking|case|reference|ref|po)"
    rb"[ _-]?(?:id|no\.?|num|number|nr\.?|#)?[\"'\\]{0,2}\W{0,4}(?:is )?$"
)
_TEST_CARDS = words(
    "4111111111111111 4242424242424242 4012888888881881 4000056655665556 4222222222222 4000000000000002"
    " 4000000000009995"
    " 4000000000000077 5555555555554444 5105105105105100 5200828282828210 2223003122003222 378282246310005"
    " 371449635398431"
    " 378734493671000 6011111111111117 6011000990139424 30569309025904 38520000023237 3056930009020004 36227206271667"
    " 3530111333300000 3566002020360505 6200000000000005 5019717010103742 6331101999990016"
)
_TEST_WORD = re.compile(
    rb"(?i)(?<![a-z])(?:tests?|testing|dummy|sandbox|placeholder|fake|sample|example|mock|stripe|fixtures?)(?![a-z])"
    rb"|test_?card"
)

_IBAN_LENGTHS: Mapping[str, int] = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27, "BR": 29,
    "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28, "EE": 20, "EG": 29,
    "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28,
    "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28,
    "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20,
    "MR": 27, "MT": 31, "MU": 30, "NI": 28, "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25,
    "QA": 29, "RO": 24, "RS": 22, "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27,
    "SO": 23, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip

_IBANS_OF_DIGITS = words("AE AT BA BE CR CZ DE DK EE ES FI HR HU IL IS LT ME NO PL PT RS SE SI SK TN XK")

_NAME_SERVERS = frozenset(map(str, PUBLIC_NAME_SERVERS))
_VERSION_WORD = re.compile(
    rb"(?i)(?:(?<![a-z])v(?:er(?:sion|\.)?)?s?|release|build|firmware|driver|[=<>~^!]=|oid"
    rb"|objectidentifier)[\"'\\(]{0,3}\W{0,3}$"
    rb"|(?:chrome|safari|firefox|edge?|opr|[a-z]{3,})/$"
)
_IP_WORD = re.compile(rb"(?i)(?<![a-z])(?:ip(?:v4)?|addr(?:ess)?|host|from|client|remote|peer|(?<!-)server)(?![a-z])")
_IP_LABEL = re.compile(rb"(?i)(?<![a-z])(?:ip(?:v4)?|addr(?:ess)?|client|remote|peer|host(?=\W*[=:]))\W{0,6}(?:is )?$")
_BEFORE_NEW_VERSION = (b"from ", b"to ", b"-> ", b"=> ")
_NEW_VERSION = re.compile(
    rb"(?i)(?<![a-z])(?:v8|chrom(?:e|ium)|(?:up|down)grad(?:e|es|ed|ing)|bump(?:s|ed|ing)?)"
    rb"(?: [\w.@/-]+){0,2} (?:from |(?:from )?v?[\d.]+ (?:to|->|=>) )$"
)
_SPEAKS_OF_VERSIONS = re.compile(
    rb"(?i)(?<![a-z/])(?:v8|chrom(?:e|ium)|versions?|releases?|(?:up|down)grad(?:e|es|ed|ing)|bump(?:s|ed|ing)?|roll"
    rb"|sections?|clauses?|chapters?|appendix|paragraphs?)(?![a-z_])|\xc2\xa7"
)
_FORWARDED = re.compile(rb"(?i)(?:forwarded[a-z-]*|real-ip|client[_-]?ip)[\"'\\]{0,2}\W{1,4}(?:for=)?[\d., ]*$")
_IN_VECTOR_PATH = re.compile(
    rb"(?:(?:^|[\s\"'])[Mm]|[MmLlHhVvCcSsQqTtAa][\d.]+[ ,.-])-?[\d.]+[ ,-][\d., MmLlHhVvCcSsQqTtAaZz-]*$"
)
"""The numbers of an SVG path, which leave out what they can: `1.5.75.75`."""

_AMBIGUOUS_STREET = re.compile(
    rb"(?i) (?:Dr|Drive|Court|Ct|Place|Pl|Square|Sq|Close|Way|Circle|Cir|Trail|Row|Walk|Hill|Grove|Gardens|Park"
    rb"|Terrace|Lane"
    rb"|St)\.?$"
)
_YEAR = re.compile(rb"(?:19|20)\d\d")
_FRENCH_STREET = re.compile(rb"(?i), (?:rue|avenue|av\.?|boulevard|bd\.?|chemin|impasse|quai|all\xc3\xa9e) ")
_ADDRESS_GOES_ON = re.compile(
    rb"(?i)[.,]?\s{1,3}(?:Suite|Ste|Apt|Apartment|Unit|Floor|#"
    rb"|[A-Z][\w .'\x80-\xff-]{1,30},? (?:[A-Z]{2} )?\d{4,6}(?!\d))"
    rb"|,\s{1,2}[A-Z][a-z\x80-\xff]"
)
_ADDRESS_WORD = re.compile(
    rb"(?i)(?<![a-z])(?:address(?:es)?|lives?|living|located|moved|reside[sd]?|street|home|ship(?:ping)?|deliver\w*"
    rb"|send|sent"
    rb"|mail|billing|office|restaurant|meet|taxi|is) ?(?:is|to|at|on|in|here)?[ :,\"'\\n]{0,4}\d{0,5} ?$"
)

_PARTS_OF_A_RUN = re.compile(
    rb"(?i)(?<![a-z])(?:run(?:s|ning)?|tests?|testing|execut(?:e|es|ed|ing)|start(?:s|ed|ing)?|finish(?:ed|ing)?|pass(?:ed|ing)?"
    rb"|fail(?:ed|ing|ure|ures)?|skip(?:ped|ping)?|complet(?:ed|ing)|benchmark)[: ]{1,2}$"
)
_OUTCOME = re.compile(
    rb"(?i)(?:[ :.-]|=>){1,5}(?:of \d|\(?\d+ (?:tests?|specs?|cases?|of)|tests?|specs?|cases?|"
    rb"(?:has |have |is |was )?(?:pass|fail|skip|complet|finish|start|run|end|abort|ok\b|succe|error|took|done))"
)
_HOUSE_BEFORE = re.compile(rb"(?<![\w.])\d{1,5} [A-Z][\w .'-]{2,40}[,\n]\s{0,3}$")
_ZIP_CODES_OF_WORDS: Mapping[bytes, tuple[bytes, ...]] = {
    b"HI": (b"967", b"968"),
    b"ID": (b"83",),
    b"IN": (b"46", b"47"),
    b"ME": (b"039", b"04"),
    b"OH": (b"43", b"44", b"45"),
    b"OK": (b"73", b"74"),
    b"OR": (b"97",),
}
"""How zip codes begin in the states whose abbreviations are also words in capitals."""

_PART_OF_A_TEXT = re.compile(
    rb"(?i)(?<![a-z])(?:chapters?|sections?|figures?|tables?|parts?|steps?|episodes?|acts?|levels?|volumes?|books?"
    rb"|seasons?|scenes?|quests?|tracks?|phases?) $"
)

_NO_NAMES = words(
    "the a an this that these those it he she they we you i my your his her our their and or not no but if to from of"
    " in on at"
    " bot robot admin administrator team support system user users assistant agent customer root service sir madam all"
    " everyone everybody github gitlab dependabot actions noreply jenkins committee developers maintainers contributors"
    " list mailing group project community authors security info sales help null none undefined unknown name here there"
    " claude chatgpt gpt qwen gemini gemma llama mistral deepseek copilot siri alexa cortana grok bard"
)

PERSONAL: Mapping[str, "Validator"] = {
    check.__name__: check
    for check in (
        email, phone, international_phone, grouped_phone, bare_phone, card, ssn, iban, public_ipv6, leads_to_somebody,
        street, unit, city_and_zip, identifier, person,
    )
}  # fmt: skip
"""What the rules for personal data may name."""
