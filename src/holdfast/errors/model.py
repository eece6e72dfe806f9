"""Models: the provider, its answers, and what it refuses."""

from __future__ import annotations

from holdfast.errors.base import EXIT_FAILED, BadUsage, Retryable, Terminal, Unresolved


class ModelUnavailable(Retryable):
    """No endpoint of the model gave a reply. A connection failed or was cut before the reply, a request timed out, a
    server error came, or every endpoint rests after failures. The same request may be sent again. `retry_after_s` is
    how long the provider asks to wait, or None; `failures` lists what each endpoint said, as JSON values."""

    code = "model-unavailable"
    default_hint = "Holdfast sends the same request again later; give the model a second endpoint to avoid the wait"

    def __init__(self, message: str, *, retry_after_s: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.failures: tuple[dict[str, object], ...] = ()


class ModelRateLimited(ModelUnavailable):
    """Every endpoint that could be asked answered 429."""

    code = "model-rate-limited"
    default_hint = "Holdfast sends the request again after the time that the provider names"


class ModelOverloaded(ModelUnavailable):
    """The provider is overloaded: 503, 529, or an error in the middle of a stream."""

    code = "model-overloaded"
    default_hint = "the provider is overloaded; Holdfast sends the request again later"


class ModelRejected(Terminal):
    """The provider rejects the request; sending it again changes nothing. The message is the provider's own, without
    the key."""

    code = "model-rejected"
    exit_code = EXIT_FAILED
    default_hint = "the message is from the provider; `holdfast explain models` says what Holdfast sends"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.failures: tuple[dict[str, object], ...] = ()


class ContextTooLong(ModelRejected):
    """The conversation does not fit into the model's context, or the request is larger than the provider accepts."""

    code = "context-too-long"
    default_hint = "shorten the conversation, or choose a model with a longer context"


class ModelKeyRefused(ModelRejected):
    """The endpoint's key is missing, wrong, or may not use this model. Other endpoints were tried first."""

    code = "model-key-refused"
    default_hint = "check the endpoint's key and its permissions; Holdfast never shows keys"


class ModelNotFound(ModelRejected):
    """The endpoint has no such model, or nothing answers at its URL. Other endpoints were tried first."""

    code = "model-not-found"
    default_hint = "check the model's name and the endpoint's URL"


class ModelQuotaSpent(ModelRejected):
    """The account has no credit or has reached its spending limit."""

    code = "model-quota-spent"
    default_hint = "raise the limit or add credit at the provider; waiting alone does not help"


class ModelRefused(Terminal):
    """The model itself declined what the agent was asked to do; the message is in its words. The task has failed;
    earlier effects stay."""

    code = "model-refused"
    exit_code = EXIT_FAILED
    default_hint = (
        "change the request and submit it under a new id; `holdfast task show TASK` lists the steps already done"
    )


class StateHeldElsewhere(BadUsage):
    """The request depends on state that the provider keeps: a stored reply, a thread, an uploaded file, a container.
    Such state is in no checkpoint and no backup, and may be missing when the task resumes. Nothing was sent."""

    code = "state-held-elsewhere"
    default_hint = (
        "send the contents themselves in the request; or accept the risk: add the name in brackets to `allow_state`"
    )


class ReplyGarbled(Unresolved):
    """A reply began and cannot be used; it is never recorded as one. Other endpoints were tried first. Asking again is
    safe, but you pay again. `reason` is `cut`, `garbage`, `empty` or `too-large`."""

    code = "reply-garbled"
    default_hint = "Holdfast threw the reply away and sends the request again"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.failures: tuple[dict[str, object], ...] = ()
