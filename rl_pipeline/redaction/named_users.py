"""Users whom a value names by its fields: each becomes its placeholder, by which they are erased."""

from typing import Any

from rl_pipeline.redaction.placeholders import PLACEHOLDER
from rl_pipeline.redaction.redactor import Redacted, Redactor

USER_FIELDS = ("user_id", "user")


def redacted_with_users(redactor: Redactor, tree: dict[str, Any], naming: dict[str, Any]) -> tuple[Redacted, list[str]]:
    """The tree redacted, with `naming` in it as `metadata`, and the placeholders of all users whom that names.

    The users are those that it names as `user_id` or `user`, anywhere in it; what else is said of them goes as well.
    Raises `SensitiveKey` as redaction does.
    """
    users: dict[str, str] = {}
    metadata = _without_users(redactor, naming, users, False)
    known = {user: "USER" for user in users if not PLACEHOLDER.fullmatch(user)}
    return redactor.redact({**tree, "metadata": metadata}, known=known), list(users.values())


def _without_users(redactor: Redactor, value: Any, users: dict[str, str], names_users: bool) -> Any:
    """The value with placeholders for its users, who are put into `users`; the outermost come first."""
    if isinstance(value, dict):
        fields = sorted(value.items(), key=lambda field: field[0] not in USER_FIELDS)
        return {
            name: _without_users(redactor, child, users, names_users or name in USER_FIELDS) for name, child in fields
        }
    if isinstance(value, list | tuple):
        return [_without_users(redactor, child, users, names_users) for child in value]
    if not names_users or isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return value
    user = str(value)
    users.setdefault(user, user if PLACEHOLDER.fullmatch(user) else redactor.placeholder("USER", user))
    return users[user]
