"""The one exception every part raises towards people. Parts derive their own from it; nothing else belongs here."""


class PipelineError(Exception):
    """A failure that a person can act on: its text is one line and says what to do next."""
