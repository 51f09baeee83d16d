"""Alerts by e-mail, through an SMTP server."""

from __future__ import annotations

import base64
import smtplib
import ssl
from collections.abc import Callable
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime, getaddresses, localtime, make_msgid
from functools import partial

from hpcdash.config.watch_settings import MailSettings
from hpcdash.domain.alerts import Severity
from hpcdash.errors import UsageError
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import (
    VERIFY_STEP,
    Notifier,
    NotifyFailed,
    in_thread,
    without_secrets,
)

# Each exchange with the server has the time limit; there are about ten.
_LIMIT_FACTOR = 4


class MailNotifier(Notifier):
    """One message to all recipients; raises UsageError for an address that is none, or a password
    without TLS.
    """

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings
        if settings.password and settings.security == "none":
            raise UsageError(
                "refusing to send an SMTP password without TLS",
                'Set security = "starttls" or "tls".',
            )
        if not settings.recipients:
            raise UsageError("[[watch.mail]] has no recipient", "Add a recipient.")
        for address in (settings.sender, *settings.recipients):
            _parse_address(address)
        recipients = ", ".join(settings.recipients)
        self.name = f"e-mail to {recipients} through {settings.host}:{settings.port}"

    async def send(self, message: Message) -> None:
        """Raises NotifyFailed, with `reached` where the server took it for some of the
        recipients.
        """
        mail = self._mail(message)
        limit = self._settings.timeout_seconds * _LIMIT_FACTOR
        try:
            refused = await in_thread(lambda: self._hand_over(mail), limit)
        except TimeoutError:
            raise self._failure("the server timed out") from None
        except smtplib.SMTPRecipientsRefused as error:
            raise self._refusal(error.recipients, reached=False) from None
        except smtplib.SMTPResponseException as error:
            reported = error.smtp_error
            if isinstance(reported, bytes):
                reported = reported.decode("utf-8", "replace")
            is_lasting = 500 <= error.smtp_code < 600
            raise self._failure(f"{error.smtp_code} {reported}", is_lasting=is_lasting) from None
        except smtplib.SMTPNotSupportedError as error:
            step = "Ask your mail administrator for the port and the security setting."
            raise self._failure(str(error), step, is_lasting=True) from None
        except ssl.SSLCertVerificationError as error:
            text = f"certificate verification failed: {error.verify_message}"
            raise self._failure(text, VERIFY_STEP, is_lasting=True) from None
        except (OSError, smtplib.SMTPException) as error:
            raise self._failure(str(error) or type(error).__name__) from None
        if refused:
            raise self._refusal(refused, reached=True)

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["From"] = sender = _parse_address(self._settings.sender)
        mail["To"] = [_parse_address(address) for address in self._settings.recipients]
        mail["Subject"] = message.subject
        mail["Date"] = format_datetime(localtime())
        mail["Message-ID"] = make_msgid("hpcdash", sender.domain)
        # Answering machines leave it alone.
        mail["Auto-Submitted"] = "auto-generated"
        if message.severity is Severity.CRITICAL:
            mail["Importance"] = "high"
        # Lines may be longer than SMTP takes, and a relay may not take eight bits.
        mail.set_content(message.text, cte="quoted-printable")
        return mail

    def _hand_over(self, mail: EmailMessage) -> dict[str, tuple[int, bytes]]:
        """Send a mail; return the refused recipients, while others were taken, with the server's
        answers.
        """
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        connect: Callable[..., smtplib.SMTP] = smtplib.SMTP
        if settings.security == "tls":
            connect = partial(smtplib.SMTP_SSL, context=context)
        with connect(settings.host, settings.port, timeout=settings.timeout_seconds) as server:
            if settings.security == "starttls":
                server.starttls(context=context)
            if settings.user:
                server.login(settings.user, settings.password)
            return server.send_message(mail)

    def _failure(self, why: str, next_step: str = "", *, is_lasting: bool = False) -> NotifyFailed:
        return NotifyFailed(f"{self.name}: {self._clean(why)}", next_step, is_lasting=is_lasting)

    def _clean(self, message: str) -> str:
        settings = self._settings
        secrets = [settings.password]
        if settings.password:
            texts = (settings.password, f"\0{settings.user}\0{settings.password}")
            secrets += [base64.b64encode(text.encode()).decode() for text in texts]
        return without_secrets(message, secrets)

    def _refusal(self, refused: dict[str, tuple[int, bytes]], *, reached: bool) -> NotifyFailed:
        reported = "; ".join(
            f"{who}: {code} {message.decode('utf-8', 'replace')}"
            for who, (code, message) in refused.items()
        )
        # A temporary refusal of all is worth another try; recipients that have it would get it
        # twice.
        is_lasting = reached or all(code >= 500 for code, _ in refused.values())
        count = f"{len(refused)} of {len(self._settings.recipients)}"
        text = f"{self.name}: the server refused {count}: {self._clean(reported)}"
        return NotifyFailed(text, "Check the addresses.", is_lasting=is_lasting, reached=reached)


def _parse_address(address: str) -> Address:
    """Parse `a@b.org` or `Name <a@b.org>`; raises UsageError."""
    addresses = getaddresses([address])
    name, spec = addresses[0] if len(addresses) == 1 else ("", "")
    local, separator, domain = spec.rpartition("@")
    try:
        if not (separator and local and domain and address.isprintable()) or any(
            letter in spec for letter in " ,;<>"
        ):
            raise ValueError
        return Address(name, addr_spec=spec)
    except (ValueError, IndexError, MessageError):
        raise UsageError(
            f"{without_secrets(address, ())!r} is not an e-mail address",
            "Use an address such as name@example.org.",
        ) from None
