"""Models: the provider, its answers, and what it refuses."""

from __future__ import annotations

from holdfast.errors.base import EXIT_FAILED, BadUsage, Retryable, Terminal, Unresolved


class ModelUnavailable(Retryable):
    """No endpoint of the model gave a reply; nothing was taken from one.

    `retry_after_s` is how long the far end asks to wait, or None where it did not say;
    `failures` are what each endpoint said, as JSON values.
    """

    code = "model-unavailable"
    default_hint = "the same request is sent again later; a second endpoint would have taken over"

    def __init__(self, message: str, *, retry_after_s: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.failures: tuple[dict[str, object], ...] = ()


class ModelRateLimited(ModelUnavailable):
    code = "model-rate-limited"
    default_hint = "the request is sent again after the time the provider names"


class ModelOverloaded(ModelUnavailable):
    code = "model-overloaded"
    default_hint = "the provider has too much to do; the request is sent again later"


class ModelRejected(Terminal):
    """The provider will not take this request: sending it again changes nothing."""

    code = "model-rejected"
    exit_code = EXIT_FAILED
    default_hint = "the message is the provider's; see docs/reference/models.md for what is sent"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.failures: tuple[dict[str, object], ...] = ()


class ContextTooLong(ModelRejected):
    code = "context-too-long"
    default_hint = "shorten the conversation, or choose a model with a longer context"


class ModelKeyRefused(ModelRejected):
    code = "model-key-refused"
    default_hint = "check the endpoint's key and what it may use; keys are never shown"


class ModelNotFound(ModelRejected):
    code = "model-not-found"
    default_hint = "check the model's name and the endpoint's URL"


class ModelQuotaSpent(ModelRejected):
    code = "model-quota-spent"
    default_hint = "raise the limit or add credit at the provider; waiting alone does not help"


class ModelRefused(Terminal):
    """The model itself will not do what an agent was asked for; its words are the message."""

    code = "model-refused"
    exit_code = EXIT_FAILED
    default_hint = "ask otherwise; what was done before is in `holdfast task show`"


class StateHeldElsewhere(BadUsage):
    """The request leans on state that the provider keeps and that no backup of ours holds."""

    code = "state-held-elsewhere"
    default_hint = (
        "send the contents in the messages instead, or name the surface in `allow_state`; "
        "it is then recorded with every reply"
    )


class ReplyGarbled(Unresolved):
    """A model's reply came and cannot be used: it is never recorded as one.

    `reason` is cut, garbage, empty or too-large. Asking again is safe, and is paid again.
    """

    code = "reply-garbled"
    default_hint = "the request is sent again; what came of the reply was thrown away"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.failures: tuple[dict[str, object], ...] = ()
