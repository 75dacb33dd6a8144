"""Second looks at personal data: check digits, numbering plans, address ranges, and the words around a find.

A number is rarely personal by its digits alone. What these validators weigh is its shape, and the text around it: at
most `_NEAR` bytes to either side of a value, as far as the text goes. Texts and blanked placeholders are told apart by
the NUL bytes of a passage. No find may depend on a word beyond a placeholder, or redacting twice would find more.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_pipeline.redaction.validators import Validator

_NEAR = 80


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


def phone(value: bytes, _: re.Match[bytes]) -> bool:
    """A number that a label or phrase calls a phone: as many digits as one has, and no date, time or decimal."""
    plain = _without_extension(value)
    return 7 <= _count(plain) <= 15 and not _NO_PHONE.search(value) and not _is_range(plain)


def international_phone(value: bytes, _: re.Match[bytes]) -> bool:
    """A number with a country code, as long as numbers of that country are."""
    digits = _digits(_without_extension(value))
    if _NO_PHONE.search(value) or value in _BOUNDS_OF_INTEGERS:
        return False
    if digits[:1] == b"1":
        return len(digits) == 11 and digits[1:2] not in b"01"
    if digits[:1] == b"7":
        return len(digits) == 11
    return 9 <= len(digits) <= 15 and digits[:2] in _COUNTRY_CODES


def grouped_phone(value: bytes, match: re.Match[bytes]) -> bool:
    """Digits in groups: a number whose shape nothing else has, or any other in the company of a word for phones."""
    if not phone(value, match) or _is_beside_a_placeholder(match):
        return False
    plain, lead = _without_extension(value), _lead(match)[-60:]
    if _PHONE_SHAPE.fullmatch(plain) or _speaks_of_phones(lead) or _PHONE_ABBREVIATION.search(lead[-10:]):
        return True
    if _PHONE_LABEL.match(after(match)):
        return True
    return bool(_PHONE_IN_PROSE.fullmatch(plain) and _PROSE.search(lead))


def bare_phone(value: bytes, match: re.Match[bytes]) -> bool:
    """Ten digits of the North American plan, close behind a word for phones."""
    lead = _lead(match)[-32:]
    return _speaks_of_phones(lead) and not _NUMBER_OF_ANOTHER.search(lead) and not _NO_PHONE.search(value)


def card(value: bytes, match: re.Match[bytes]) -> bool:
    """A number of a card's issuer; those that are short or rare only in the company of a word for cards."""
    digits = _digits(value)
    if (digits in _TEST_CARDS and _is_named_as_test(match)) or _is_beside_a_placeholder(match):
        return False
    if _CARD_WORD.search(_lead(match)) or _CARD_WORD.search(after(match)[:60].partition(b"\n")[0]):
        return bool(_ANY_ISSUER.fullmatch(digits))
    lead = before(match)
    if _OTHER_NUMBER.search(lead) or _ARGUMENT.search(lead) or _is_one_of_a_list(value, lead, after(match)):
        return False
    return bool(_MAIN_ISSUER.fullmatch(digits))


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
    """An address of the public internet, written correctly."""
    try:
        address = ipaddress.IPv6Address(value.decode())
    except ValueError:
        return False
    return address.is_global and not address.is_multicast


def leads_to_somebody(value: bytes, match: re.Match[bytes]) -> bool:
    """A public IPv4 address that is no version, no object id, and not that of a name server which everybody uses."""
    lead = before(match)
    octets = [int(part) for part in value.split(b".")]
    if octets[:2] in ([1, 3], [2, 5]) or value in _NAME_SERVERS or _VERSION_WORD.search(lead[-24:]):
        return False
    if _IN_VECTOR_PATH.search(lead):
        return False
    looks_like_version = max(octets[:3]) < 40 or octets[1:] == [0, 0, 0]
    if not looks_like_version or _IP_WORD.search(lead[-24:]) or _FORWARDED.search(lead):
        return True
    return lead[-1:] in (b"", b"\n") and after(match).startswith(b" - - [")


def street(value: bytes, match: re.Match[bytes]) -> bool:
    """A street whose word is plain, or one like Court and Place in the company of what else an address has."""
    lead, tail = before(match), after(match)
    if _PART_OF_A_TEXT.search(lead):
        return False
    if not _AMBIGUOUS_STREET.search(value):
        return True
    stands_alone = lead[-1:] in (b"", b'"', b"\n") and tail[:1] in (b"", b'"', b"\\", b"\n")
    return stands_alone or bool(_ADDRESS_GOES_ON.match(tail) or _ADDRESS_WORD.search(lead[-40:]))


def identifier(value: bytes, _: re.Match[bytes]) -> bool:
    """A document's number has digits, and more of them than a count or a year."""
    return _count(value) >= 5


def person(value: bytes, _: re.Match[bytes]) -> bool:
    """A person's name: no word that only begins a sentence, no role, no robot, no model."""
    return not any(word.lower().strip(b".,'-0123456789") in _NO_NAMES for word in value.split())


def before(match: re.Match[bytes]) -> bytes:
    """The text that leads to the value."""
    start = _value_span(match)[0]
    return match.string[max(0, start - _NEAR) : start].rpartition(b"\x00")[2]


def after(match: re.Match[bytes]) -> bytes:
    """The text that follows the value."""
    end = _value_span(match)[1]
    return match.string[end : end + _NEAR].partition(b"\x00")[0]


def _lead(match: re.Match[bytes]) -> bytes:
    """What stands before the value on its line, or on the line of the label above it."""
    return before(match).rstrip().rpartition(b"\n")[2] + b" "


def _is_beside_a_placeholder(match: re.Match[bytes]) -> bool:
    """Whether a blank begins or ends where another group of digits might have stood; one NUL alone parts two texts."""
    start, end = _value_span(match)
    return b"\x00\x00" in match.string[max(0, start - 4) : start] or b"\x00\x00" in match.string[end : end + 4]


def _is_product(address: bytes, match: re.Match[bytes]) -> bool:
    """Whether what looks like an address with a rare ending is one of matrices: `query@keys.transpose(…)`."""
    local, _, domain = address.partition(b"@")
    is_code = _CALL_OR_INDEX.match(after(match)) is not None
    return is_code or len(local) < 3 or domain.partition(b".")[0].lower() in _OBJECTS


def _is_one_of_a_list(value: bytes, lead: bytes, tail: bytes) -> bool:
    """Whether a number behind a comma has only numbers of its length for neighbours."""
    if not lead.endswith(b","):
        return False
    fields = [_LAST_FIELD.search(lead), _NEXT_FIELD.match(tail)]
    neighbours = [field[1] for field in fields if field]
    return bool(neighbours) and all(each.isdigit() and len(each) == len(value) for each in neighbours)


def _is_named_as_test(match: re.Match[bytes]) -> bool:
    """Whether the text says, before or behind placeholders too, that the number is for tests."""
    start, end = _value_span(match)
    lead = match.string[max(0, start - 4 * _NEAR) : start].rpartition(_BETWEEN_TEXTS)[2]
    return bool(_TEST_WORD.search(lead + b" " + match.string[end : end + 4 * _NEAR].partition(_BETWEEN_TEXTS)[0]))


def _is_range(value: bytes) -> bool:
    """Pages or years: two numbers of one length, the second a little higher."""
    first, _, last = value.partition(b"-")
    return first.isdigit() and last.isdigit() and len(first) == len(last) and 0 < int(last) - int(first) < 100


def _value_span(match: re.Match[bytes]) -> tuple[int, int]:
    return match.span("value") if "value" in match.re.groupindex else match.span()


def _digits(value: bytes) -> bytes:
    return value.translate(None, _NO_DIGITS)


def _count(value: bytes) -> int:
    return len(_digits(value))


def _without_extension(value: bytes) -> bytes:
    return _EXTENSION.sub(b"", value) if b"x" in value or b"X" in value else value


def _speaks_of_phones(lead: bytes) -> bool:
    lowered = lead.lower()
    # Nearly always none: a look for the stems is far quicker than the expression.
    return any(stem in lowered for stem in _PHONE_STEMS) and _PHONE_WORD.search(lead) is not None


def _words(text: str) -> frozenset[bytes]:
    return frozenset(text.encode().split())


_BETWEEN_TEXTS = b"\n\x00\n"
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
_EXTENSION = re.compile(rb"(?i)[ ,]*(?:x|ext\.?|extension) ?\d+$")
_LOGINS = _words("git hg svn")
_NO_DOMAINS = _words(
    "png jpg jpeg gif svg webp ico pdf js jsx ts tsx mjs css scss html htm json yaml yml xml txt lock toml tar gz tgz"
    " zip"
    " whl jar so dll exe log csv ipynb cpp java class service socket target timer mount"
    " slice scope device swap automount bin pkl pickle pth onnx ckpt safetensors"
    " weight weights bias kernel matrix transpose values data shape grad inverse"
)
_LOCAL_DOMAINS = _words("local internal localhost lan")
_MAIL_NEAR = re.compile(
    rb"(?i)(?<![a-z])(?:e-?mails?|mail(?:to|box|ed|ing)?|b?cc|recipients?|sender|contact)(?![a-z])|<$"
)
_OBJECTS = _words("self cls params model module layer np jnp torch tf this super state config")
_CALL_OR_INDEX = re.compile(rb"[(\[]|\.\w")
_DOMAINS = _words(
    "com net org edu gov mil int info biz name pro mobi asia app dev cloud tech online site store shop blog xyz top"
    " club"
    " live life world email mail company agency digital media news studio design work works space website group global"
    " international bank health care law legal consulting solutions services systems network software academy education"
    " university school example test invalid museum coop aero jobs travel london berlin paris amsterdam tokyo nyc"
)
_IN_URL = re.compile(rb"://[^\s/?#\"'<>]*$")
_MAIL_WORD = re.compile(rb"(?i)(?:mail|contact|from|to|cc)\W{1,6}$|<$")

_BOUNDS_OF_INTEGERS = _words("+2147483647 +2147483648 +4294967295 +4294967296 +9007199254740991 +9007199254740992")
_NO_PHONE = re.compile(
    rb"(?:^|\D)(?:(?:19|20)\d\d([-./ ])(?:0[1-9]|1[0-2])\1[0-3]\d|[0-3]\d([-./])[01]\d\2(?:19|20)\d\d)(?:\D|$)"
    rb"|^\d+\.\d+$|^[12]\d{9}$|(\d)\3{6}|^0[xX]"
)
_PHONE_SHAPE = re.compile(
    rb"0[1-9]\d{2} \d{2} \d{2} \d{2}|0[1-9]\d{1,2} \d{3} \d{2} \d{2}|0[1-9]\d([ -])\d{3,4}\1\d{4}|0[1-9](?: \d\d){4}"
    rb"|07\d{3} \d{6}|00[1-9]\d{1,2} [1-9]\d{1,3} \d{4,8}|[2-9]\d\d [2-9]\d\d \d{4}|0[1-9]\d{3} \d{3} \d{3,4}"
    rb"|0[1-9](?:\.\d\d){4}|0[1-9](?:-\d\d){4}|\(?0?\d{2,3}\)[ -]?\d{3,4}[ -]\d{4}"
    rb"|(?:1[ -])?\([2-9]\d\d\)[ -]?\d{3}[ .-]\d{4}"
)
_PHONE_WORD = re.compile(
    rb"(?i)(?<![a-z_])(?:(?:tele|cell|mobile |smart)?phones?|tel|cell|mobile|fax|desk|sms|whatsapp|telegram|signal"
    rb"|viber"
    rb"|call(?:s|ed|ing)?(?: (?:me|us|him|her|them|back|on|at|you|the|from|to)\b)|dial(?:l?ed|l?ing)?|ring(?:ing)?"
    rb"|text(?:ed|ing|s)? (?:me|us|him|her|them|from|to)|messages?|messaging|voicemail|caller(?: id)?|talk(?: to)?"
    rb"|hotline|helpline|landline|switchboard"
    rb"|reach(?:ed|able|ing)?|contact(?:s|ed|ing)?|answer(?:s|ed|ing)?|registered|(?:my|your|his|her|their|our|new"
    rb"|old) number"
    rb"|number(?: is| was)?:?\s$"
    rb"|telefon\w*|tel\xc3\xa9fono|t\xc3\xa9l\xc3\xa9phone|m\xc3\xb3vil|celular|handy|mobil\w*|portable"
    rb"|puhelin)(?![a-z_(=])"
)
_PHONE_STEMS = (
    b"phone", b"tel", b"cell", b"mobil", b"fax", b"desk", b"sms", b"whatsapp", b"signal", b"viber", b"call", b"dial",
    b"ring", b"text", b"messag", b"voicemail", b"talk", b"line", b"switchboard", b"reach", b"contact", b"answer",
    b"registered", b"number", b"t\xc3\xa9l\xc3\xa9", b"m\xc3\xb3vil", b"celular", b"handy", b"portable", b"puhelin",
)  # fmt: skip
"""One of them is in everything that `_PHONE_WORD` finds."""
_PHONE_LABEL = re.compile(
    rb"(?i)[ ,]{0,2}\(?(?:office|fax|mobile|cell|home|work|desk|direct|phone|tel)(?![a-z_(=])"
    rb"|[ a-z]{0,12} (?:your|my|his|her|their|the) (?:phone|number|mobile|cell)(?![a-z_(=])"
)
_PHONE_ABBREVIATION = re.compile(rb"(?i)(?:^|[\s(])(?:t|m|p|f|ph|mob)[.:)]{1,2} $|(?<![a-z])text(?:s|ed|ing)? $")
_NUMBER_OF_ANOTHER = re.compile(
    rb"(?i)(?<!phone)(?<!my)(?<!your)(?<!mobile)(?<!cell)(?<!home)(?<!contact)(?<!fax) number\b\W*(?:is )?$|\bid\W*$"
)
_PHONE_IN_PROSE = re.compile(
    rb"[2-9]\d\d[ -]\d{4}|\d{2,3} \d\d \d{3}|\d{2,4} \d{3} \d\d \d\d|\d\d \d{6}|0\d{3}[ -]\d{7}|\d\d(?:-\d\d){3}"
    rb"|\(\d\d\) \d{3}-\d{3}"
)
"""Neither a shape that only phones have, nor that of a great number with its thousands set apart."""
_PROSE = re.compile(rb"(?:^|[.!?] )[A-Za-z']+(?: [a-z']+){0,12} (?:at|to|on|from|is|add|via|use|with) $")
_COUNTRY_CODES = _words(
    "20 21 22 23 24 25 26 27 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57"
    " 58 59"
    " 60 61 62 63 64 65 66 67 68 69 80 81 82 84 85 86 87 88 90 91 92 93 94 95 96 97 98 99"
)

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
_NUMBER_OF_THING = re.compile(
    rb"(?i)(?<![a-z])(?:order|invoice|ticket|part|item|sku|serial|model|tracking|case|reference|ref|po)"
    rb"[ _-]?(?:id|no\.?|num|number|nr\.?|#)?[\"'\\]{0,2}\W{0,4}(?:is )?$"
)
_TEST_CARDS = _words(
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

_IBANS_OF_DIGITS = _words("AE AT BA BE CR CZ DE DK EE ES FI HR HU IL IS LT ME NO PL PT RS SE SI SK TN XK")

_NAME_SERVERS = _words("8.8.8.8 8.8.4.4 1.1.1.1 1.0.0.1 9.9.9.9 208.67.222.222 208.67.220.220")
_VERSION_WORD = re.compile(
    rb"(?i)(?:(?<![a-z])v(?:er(?:sion|\.)?)?s?|release|build|firmware|driver|[=<>~^!]=|oid"
    rb"|objectidentifier)[\"'\\(]{0,3}\W{0,3}$"
    rb"|(?:chrome|safari|firefox|edge?|opr|[a-z]{3,})/$"
)
_IP_WORD = re.compile(rb"(?i)(?<![a-z])(?:ip(?:v4)?|addr(?:ess)?|host|from|client|remote|peer|(?<!-)server)(?![a-z])")
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

_PART_OF_A_TEXT = re.compile(
    rb"(?i)(?<![a-z])(?:chapters?|sections?|figures?|tables?|parts?|steps?|episodes?|acts?|levels?|volumes?|books?"
    rb"|seasons?|scenes?|quests?|tracks?|phases?) $"
)

_NO_NAMES = _words(
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
        street, identifier, person,
    )
}  # fmt: skip
"""What the rules for personal data may name."""
