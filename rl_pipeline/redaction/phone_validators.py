"""Second looks at phone numbers: their numbering plans and shapes, and the words around them."""

import re

from rl_pipeline.redaction.surroundings import after, digits_of, is_beside_a_placeholder, lead_on_line, words


def phone(value: bytes, _: re.Match[bytes]) -> bool:
    """A number that a label or phrase calls a phone: as many digits as one has, and no date, time or decimal."""
    plain = _without_extension(value)
    if not 7 <= len(digits_of(plain)) <= 15 or _NO_PHONE.search(value):
        return False
    groups = plain.split()
    return not _is_range(plain) and not (len(groups) > 2 and _SIZES.issuperset(groups))


def international_phone(value: bytes, _: re.Match[bytes]) -> bool:
    """A number with a country code, as long as numbers of that country are."""
    if _NO_PHONE.search(value) or value in _BOUNDS_OF_INTEGERS:
        return False
    return _is_of_a_country(digits_of(_without_extension(value)))


def _is_of_a_country(digits: bytes) -> bool:
    if digits[:1] == b"1":
        return len(digits) == 11 and digits[1:2] not in b"01"
    if digits[:1] == b"7":
        return len(digits) == 11
    return 9 <= len(digits) <= 15 and digits[:2] in _COUNTRY_CODES


def grouped_phone(value: bytes, match: re.Match[bytes]) -> bool:
    """Digits in groups: a number whose shape nothing else has, or any other in the company of a word for phones."""
    if not phone(value, match) or is_beside_a_placeholder(match):
        return False
    plain, lead = _without_extension(value), lead_on_line(match)[-60:]
    if _has_shape_of_phone(plain) and not _is_measured(plain, lead, after(match)):
        return True
    if _speaks_of_phones(lead) or _PHONE_ABBREVIATION.search(lead[-10:]):
        return True
    if _PHONE_LABEL.match(after(match)):
        return True
    return bool(_PHONE_IN_PROSE.fullmatch(plain) and _PROSE.search(lead))


def bare_phone(value: bytes, match: re.Match[bytes]) -> bool:
    """Ten digits of the North American plan, close behind a word for phones."""
    lead = lead_on_line(match)[-32:]
    return _speaks_of_phones(lead) and not _NUMBER_OF_ANOTHER.search(lead) and not _NO_PHONE.search(value)


def _has_shape_of_phone(plain: bytes) -> bool:
    """Whether nothing else is written so; behind 00 stands a country's code, and not the next code point."""
    if not plain.startswith(b"00"):
        return _PHONE_SHAPE.fullmatch(plain) is not None
    if _CODE_POINTS.fullmatch(plain) or not _WITH_EXIT_CODE.fullmatch(plain):
        return False
    return _is_of_a_country(digits_of(plain)[2:])


def _is_measured(plain: bytes, lead: bytes, tail: bytes) -> bool:
    """Whether three numbers, with nothing but spaces between them, are quantities by the words around them."""
    if not _THREE_NUMBERS.fullmatch(plain):
        return False
    return bool(_UNIT.match(tail) or _QUANTITY.search(lead))


def _is_range(value: bytes) -> bool:
    """Pages or years: two numbers of one length, the second a little higher."""
    first, _, last = value.partition(b"-")
    return first.isdigit() and last.isdigit() and len(first) == len(last) and 0 < int(last) - int(first) < 100


def _without_extension(value: bytes) -> bytes:
    return _EXTENSION.sub(b"", value) if b"x" in value or b"X" in value else value


def _speaks_of_phones(lead: bytes) -> bool:
    lowered = lead.lower()
    for stem in _PHONE_STEMS:  # Nearly always none: a look for the stems is far quicker than the expression.
        if stem in lowered:
            return _PHONE_WORD.search(lead) is not None
    return False


_EXTENSION = re.compile(rb"(?i)[ ,]*(?:x|ext\.?|extension) ?\d+$")
_BOUNDS_OF_INTEGERS = words("+2147483647 +2147483648 +4294967295 +4294967296 +9007199254740991 +9007199254740992")
_NO_PHONE = re.compile(
    rb"(?:^|\D)(?:(?:19|20)\d\d([-./ ])(?:0[1-9]|1[0-2])\1[0-3]\d|[0-3]\d([-./])[01]\d\2(?:19|20)\d\d)(?:\D|$)"
    rb"|^\d+\.\d+$|^1\d{9}$|^214748364[78]$|(\d)\3{6}|^0[xX]"
)
_PHONE_SHAPE = re.compile(
    rb"0[1-9]\d{2} \d{2} \d{2} \d{2}|0[1-9]\d{1,2} \d{3} \d{2} \d{2}|0[1-9]\d([ -])\d{3,4}\1\d{4}|0[1-9](?: \d\d){4}"
    rb"|07\d{3} \d{6}|[2-9]\d\d [2-9]\d\d \d{4}|0[1-9]\d{3} \d{3} \d{3,4}"
    rb"|0[1-9](?:\.\d\d){4}|0[1-9](?:-\d\d){4}|\(?0?\d{2,3}\)[ -]?\d{3,4}[ -]\d{4}"
    rb"|(?:1[ -])?\([2-9]\d\d\)[ -]?\d{3}[ .-]\d{4}|8[ -]?\([3-9]\d\d\)[ -]?\d{3}[ -]\d\d[ -]\d\d"
    rb"|01[5-7]\d[ -]\d{7,8}|\((?:01[5-7]\d|030|040|069|089)\) ?\d{6,8}"
)
_WITH_EXIT_CODE = re.compile(rb"00 ?[1-9]\d{0,2}(?:[ -]\d{1,4}){0,5}[ -]\d{2,8}")
_CODE_POINTS = re.compile(rb"\d{4}(?: \d{4})+")
_THREE_NUMBERS = re.compile(rb"[2-9]\d\d [2-9]\d\d \d{4}")
_UNIT = re.compile(
    rb"(?i) ?(?:(?:[num]|\xc2\xb5|\xce\xbc)?s|secs?|seconds?|minutes?|hours?|days?|ticks?|cycles?|px|pixels?|pts?"
    rb"|[kmgt]i?b|b|bytes?|bits?|rows?|lines?|items?|tokens?|steps?|times?|points?|[km]m|cm|k?g|[km]?hz|%)(?![a-z])"
)
_QUANTITY = re.compile(
    rb"(?i)(?<![a-z])(?:sizes?|elapsed|took|durations?|times?|resolutions?|widths?|heights?|dim(?:ension)?s?|shapes?|ranges?|offsets?"
    rb"|counts?|totals?|sums?|rows?|lines?|bytes|ids?|ports?|pages?|indices|values?|scores?|seeds?|cycles)\W{1,3}$"
)
"""What says, behind three numbers or before them, that they measure or count something."""
_SIZES = words(
    "240 256 320 360 375 390 393 412 414 428 432 480 512 540 568 576 600 640 667 720 736 750 768 800 810 812 820 828"
    " 834 844 852 854 896 900 926 932 960 1024 1050 1080 1112 1125 1136 1152 1170 1179 1180 1194 1200 1242 1280 1284"
    " 1290 1334 1366 1440 1536 1600 1680 1792 1800 1920 2048 2160 2208 2304 2340 2400 2436 2532 2556 2560 2688 2732"
    " 2778 2796 2880 3072 3200 3440 3840 4096 4320 5120 7680"
)
"""Sides of screens and pictures."""
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
_COUNTRY_CODES = words(
    "20 21 22 23 24 25 26 27 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57"
    " 58 59"
    " 60 61 62 63 64 65 66 67 68 69 80 81 82 84 85 86 87 88 90 91 92 93 94 95 96 97 98 99"
)
