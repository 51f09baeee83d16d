"""Alerts by e-mail, through an SMTP server."""

from __future__ import annotations

import base64
import smtplib
import ssl
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime, getaddresses, localtime, make_msgid

from hpcdash.config.watch_settings import MailSettings
from hpcdash.domain.alerts import Severity
from hpcdash.errors import UsageError
from hpcdash.services.watch.message import Message
from hpcdash.services.watch.notifiers.base import NotifyFailed, in_thread, without_secrets

# Each exchange with the server has the time limit; there are about ten.
_LIMIT_FACTOR = 4


class MailNotifier:
    """One message to all recipients; raises UsageError for an address that is none, or a password
    without TLS.
    """

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings
        if settings.password and settings.security == "none":
            raise UsageError(
                "refusing to send an SMTP password without TLS",
                'Write security = "starttls" or "tls".',
            )
        if not settings.recipients:
            raise UsageError("[[watch.mail]] has no recipient", "Add a recipient.")
        for address in (settings.sender, *settings.recipients):
            _checked(address)

    @property
    def name(self) -> str:
        return (
            f"e-mail to {', '.join(self._settings.recipients)} through "
            f"{self._settings.host}:{self._settings.port}"
        )

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
            reported = (
                error.smtp_error.decode("utf-8", "replace")
                if isinstance(error.smtp_error, bytes)
                else error.smtp_error
            )
            raise self._failure(
                f"{error.smtp_code} {reported}", is_lasting=500 <= error.smtp_code < 600
            ) from None
        except smtplib.SMTPNotSupportedError as error:
            step = "Ask the site for the port and the security setting."
            raise self._failure(str(error), step, is_lasting=True) from None
        except ssl.SSLCertVerificationError as error:
            step = "Set ca_file to the CA certificates to verify it with."
            raise self._failure(
                f"certificate verification failed: {error.verify_message}", step, is_lasting=True
            ) from None
        except (OSError, smtplib.SMTPException) as error:
            raise self._failure(str(error) or type(error).__name__) from None
        if refused:
            raise self._refusal(refused, reached=True)

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["From"] = _checked(self._settings.sender)
        mail["To"] = [_checked(address) for address in self._settings.recipients]
        mail["Subject"] = message.subject
        mail["Date"] = format_datetime(localtime())
        mail["Message-ID"] = make_msgid(
            "hpcdash", self._settings.sender.rpartition("@")[2].rstrip("> ") or "localhost"
        )
        # Answering machines leave it alone.
        mail["Auto-Submitted"] = "auto-generated"
        if message.severity is Severity.CRITICAL:
            mail["Importance"] = "high"
        # Lines may be longer than SMTP takes, and a relay may not take eight bits.
        mail.set_content(message.text, cte="quoted-printable")
        return mail

    def _hand_over(self, mail: EmailMessage) -> dict[str, tuple[int, bytes]]:
        """Blocks; the recipients that were refused while others were taken, with the server's
        words.
        """
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        server: smtplib.SMTP
        if settings.security == "tls":
            server = smtplib.SMTP_SSL(
                settings.host, settings.port, timeout=settings.timeout_seconds, context=context
            )
        else:
            server = smtplib.SMTP(settings.host, settings.port, timeout=settings.timeout_seconds)
        with server:
            if settings.security == "starttls":
                server.starttls(context=context)
            if settings.user:
                server.login(settings.user, settings.password)
            return server.send_message(mail)

    def _failure(self, why: str, next_step: str = "", *, is_lasting: bool = False) -> NotifyFailed:
        return NotifyFailed(f"{self.name}: {self._clean(why)}", next_step, is_lasting=is_lasting)

    def _refusal(self, refused: dict[str, tuple[int, bytes]], *, reached: bool) -> NotifyFailed:
        """A temporary refusal of all is worth another try; where some have it they would get it
        twice.
        """
        reported = "; ".join(
            f"{who}: {code} {message.decode('utf-8', 'replace')}"
            for who, (code, message) in refused.items()
        )
        lasting = reached or all(code >= 500 for code, _ in refused.values())
        text = (
            f"{self.name}: the server refused {len(refused)} of {len(self._settings.recipients)}: "
            f"{self._clean(reported)}"
        )
        return NotifyFailed(text, "Check the addresses.", is_lasting=lasting, reached=reached)

    def _clean(self, message: str) -> str:
        password = self._settings.password
        user = self._settings.user
        texts = (password, f"\0{user}\0{password}") if password else ()
        encoded = (base64.b64encode(text.encode()).decode() for text in texts)
        return without_secrets(message, [password, *encoded])


def _checked(address: str) -> Address:
    """`a@b.org` or `Name <a@b.org>`; raises UsageError."""
    found = getaddresses([address])
    name, spec = found[0] if len(found) == 1 else ("", "")
    local, at, domain = spec.rpartition("@")
    try:
        if not (at and local and domain and address.isprintable()) or any(
            letter in spec for letter in " ,;<>"
        ):
            raise ValueError
        return Address(name, addr_spec=spec)
    except (ValueError, IndexError, MessageError):
        raise UsageError(
            f"{without_secrets(address, ())!r} is not an e-mail address", "Write name@example.org."
        ) from None
