"""Failures as ClickHouse reports them: a code, a text, and the code's name."""

import re

ERROR_CODES = {
    "CANNOT_READ_ALL_DATA": 33,
    "BAD_ARGUMENTS": 36,
    "NOT_IMPLEMENTED": 48,
    "SYNTAX_ERROR": 62,
    "UNKNOWN_COMPRESSION_METHOD": 89,
    "UNKNOWN_SETTING": 115,
    "READONLY": 164,
    "QUERY_IS_TOO_LARGE": 229,
    "NOT_ENOUGH_SPACE": 243,
    "SESSION_NOT_FOUND": 372,
    "SESSION_IS_LOCKED": 373,
    "INVALID_SESSION_TIMEOUT": 374,
    "ACCESS_DENIED": 497,
    "AUTHENTICATION_FAILED": 516,
    "UNKNOWN_EXCEPTION": 1002,
}
_ENGINE_MESSAGE = re.compile(r"Code: (\d+)\. .*", re.DOTALL)


class EngineError(Exception):
    """A failure as ClickHouse reports it: a code and a text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @classmethod
    def named(cls, name: str, text: str) -> "EngineError":
        code = ERROR_CODES[name]
        return cls(code, f"Code: {code}. DB::Exception: {text}. ({name})")

    @classmethod
    def of(cls, error: Exception) -> "EngineError":
        """What chdb raised, without the words its Python layer puts before ClickHouse's own."""
        found = _ENGINE_MESSAGE.search(str(error))
        if found is None:
            return cls.named("UNKNOWN_EXCEPTION", str(error))
        return cls(int(found.group(1)), found.group().strip())
