"""How records name a session that the gateway served: by a keyed digest of what its caller called it.

A caller's name may be anything, a mail address too, so it is stored nowhere. Whoever has the key can find the sessions
of a name again: to join them with trajectories, and to erase them. The key is the gateways' own. They face the callers,
and with the redaction key they could test guesses at everything that was ever redacted.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from rl_pipeline.redaction.policy import RedactionKey

# What a header and a message id carry unchanged.
_PLAIN = re.compile(r"[!-~]{1,256}")


def plain_name(name: str) -> str:
    """The name as a header can carry it: one that none could becomes a digest, always the same."""
    if _PLAIN.fullmatch(name):
        return name
    return f"session-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def stored_name(key: RedactionKey, name: str) -> str:
    """What stands for a session in everything that is stored or told of it: at all gateways with this key the same."""
    return f"session-{hmac.digest(key.secret, plain_name(name).encode(), 'sha256')[:16].hex()}"


def stored_names(keys: Sequence[RedactionKey], names: Iterable[str]) -> dict[str, str]:
    """What stands for each of the names under any of the keys, and the name that it stands for."""
    return {stored_name(key, name): name for name in names for key in keys}
