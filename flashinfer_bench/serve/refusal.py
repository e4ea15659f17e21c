"""A request that is not served: the status, the reason, and when to come again."""

from __future__ import annotations


class Refusal(Exception):
    """Raised wherever a request is refused; the gate and the routes make an answer of it.

    Args:
        status: of HTTP.
        reason: for people: what is wrong, and what to do.
        retry_after_s: the client may come again after so many seconds; None where the same request is refused again.
    """

    def __init__(self, status: int, reason: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the answer."""
        found = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        if self.status == 401:
            found["www-authenticate"] = "Bearer"
        return found
