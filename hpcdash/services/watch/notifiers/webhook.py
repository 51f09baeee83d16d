"""Alerts as a POST of JSON to a URL: all there is, or a text in Slack's form."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message as Headers
from typing import IO, Any

import msgspec

from hpcdash import __version__
from hpcdash.config.watch_settings import WebhookSettings
from hpcdash.errors import UsageError
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import (
    VERIFY_STEP,
    Notifier,
    NotifyFailed,
    in_thread,
    without_secrets,
)

# Slack cuts a text at 40 000 characters.
_LONGEST_TEXT = 30_000
_MAX_OF_AN_ANSWER = 2000
_LONGEST_RETRY_SECONDS = 60.0
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a POST would become a GET, or reach another recipient."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Headers,
        newurl: str,
    ) -> None:
        return None


class WebhookNotifier(Notifier):
    """POST to an http or https URL; raises UsageError for another."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        try:
            parts = urllib.parse.urlsplit(settings.url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            raise UsageError("a webhook's URL is invalid", "Use https://HOST/PATH.") from None
        self.name = f"{settings.form} webhook at {parts.scheme}://{parts.hostname}{port}"
        is_plain = _is_plain(settings.url) and " " not in settings.url
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username
            or not is_plain
        ):
            raise UsageError(
                "a webhook's URL must be https:// with a host",
                "Pass tokens in headers.",
            )
        for name, value in settings.headers.items():
            if not _is_plain(name + value):
                raise UsageError(f"a webhook's header {name!r} cannot be sent")

    async def send(self, message: Message) -> None:
        """Raises NotifyFailed for any answer but a 2xx."""
        limit = self._settings.timeout_seconds * 2
        try:
            await in_thread(lambda: self._post(self._body(message)), limit)
        except TimeoutError:
            raise self._failure("timed out") from None
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                text = f"certificate verification failed: {reason.verify_message}"
                raise self._failure(text, VERIFY_STEP, is_lasting=True) from None
            raise self._failure(_why(reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(_why(error)) from None

    def _body(self, message: Message) -> bytes:
        if self._settings.form == "json":
            return msgspec.json.encode(message.payload)
        text = message.text
        if not text.startswith(message.subject):
            text = f"*{message.subject}*\n{text}"
        # Only these three mean something to Slack: <!channel> would call everyone.
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        if len(text) > _LONGEST_TEXT:
            text = text[:_LONGEST_TEXT] + "…"
        return msgspec.json.encode({"text": text})

    def _post(self, body: bytes) -> None:
        """Blocks; raises NotifyFailed, OSError, HTTPException."""
        headers = {
            "User-Agent": f"hpcdash/{__version__}",
            **self._settings.headers,
            "Content-Type": "application/json; charset=utf-8",
        }
        request = urllib.request.Request(self._settings.url, body, headers, method="POST")
        context = ssl.create_default_context(cafile=self._settings.ca_file or None)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects
        )
        try:
            with opener.open(request, timeout=self._settings.timeout_seconds) as answer:
                answer.read(_MAX_OF_AN_ANSWER)
        except urllib.error.HTTPError as error:
            with error:
                reported = b""
                with contextlib.suppress(OSError, http.client.HTTPException):
                    reported = error.read(_MAX_OF_AN_ANSWER)
            is_lasting = error.code < 500 and error.code not in _WORTH_ANOTHER_TRY
            answer_text = reported.decode("utf-8", "replace")
            text = f"the server answered {error.code} {error.reason}: {answer_text}".rstrip(": ")
            step = "Check the URL." if is_lasting else ""
            # In seconds; a date is ignored.
            pause = error.headers.get("Retry-After") or ""
            is_known = pause.isdecimal() and len(pause) < 10
            retry_seconds = min(float(pause), _LONGEST_RETRY_SECONDS) if is_known else None
            raise self._failure(
                text, step, is_lasting=is_lasting, retry_seconds=retry_seconds
            ) from None

    def _failure(self, why: str, next_step: str = "", **details: Any) -> NotifyFailed:
        url = self._settings.url
        parts = urllib.parse.urlsplit(url)
        secrets = [url, parts.query, *parts.path.split("/")]
        secrets += [value for _, value in urllib.parse.parse_qsl(parts.query)]
        for header in self._settings.headers.values():
            secrets += [header, *header.split()]
        return NotifyFailed(f"{self.name}: {without_secrets(why, secrets)}", next_step, **details)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _why(error: object) -> str:
    """`Connection refused`, without the number that it has."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
