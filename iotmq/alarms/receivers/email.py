"""E-mail: notifications as plain text, through an SMTP server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from typing import Final

from iotmq.alarms.alarm import Alarm
from iotmq.alarms.condition import LEVELS
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.alert import ALERTS_MAX, time_text
from iotmq.alarms.receivers.sender import DeliveryError
from iotmq.alarms.settings import EmailSettings
from iotmq.clock import Clock
from iotmq.errors import ConfigError

_SUBJECT_CHARACTERS_MAX: Final = 150
# A subject stays on the line of its name.
_POLICY: Final = SMTP.clone(max_line_length=200)


class Email:
    """A Sender."""

    def __init__(self, settings: EmailSettings, clock: Clock) -> None:
        """ConfigError when the library is not installed, or the roots cannot be used."""
        try:
            import aiosmtplib
        except ImportError:
            raise ConfigError(
                f"alarms.receivers: {settings.name} needs a library: pip install iotmq[email]"
            ) from None
        self._library = aiosmtplib
        self._settings = settings
        self._clock = clock
        try:
            self._tls = (
                None
                if settings.encryption == "none"
                else ssl.create_default_context(cafile=settings.ca_file or None)
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{settings.ca_file or 'the roots of this machine'}: {error}") from error

    async def send(self, notification: Notification) -> None:
        settings = self._settings
        try:
            await self._library.send(
                # As bytes: the library would fold its lines otherwise.
                mail_of(settings, notification, self._clock.now_ms()).as_bytes(),
                sender=settings.sender,
                recipients=list(settings.to),
                hostname=settings.host,
                port=settings.port,
                use_tls=settings.encryption == "tls",
                start_tls=settings.encryption == "starttls",
                tls_context=self._tls,
                username=settings.user or None,
                password=settings.password or None,
                timeout=settings.timeout_s,
            )
        except (self._library.SMTPException, OSError, ValueError) as error:
            raise DeliveryError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Each mail has a connection of its own."""


def mail_of(settings: EmailSettings, notification: Notification, now_ms: int) -> EmailMessage:
    """Make the mail of a notification."""
    mail = EmailMessage(policy=_POLICY)
    mail["From"] = settings.sender
    mail["To"] = ", ".join(settings.to)
    mail["Date"] = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    mail["Message-ID"] = make_msgid(domain=settings.sender.rpartition("@")[2])
    mail["Auto-Submitted"] = "auto-generated"
    mail["Subject"] = _one_line(_subject(notification))[:_SUBJECT_CHARACTERS_MAX]
    mail.set_content("\n".join(_lines(notification)) + "\n")
    return mail


def _subject(notification: Notification) -> str:
    firing, ended = notification.firing, notification.ended
    first = max(firing or ended, key=lambda alarm: LEVELS[alarm.level])
    more = f" and {len(firing or ended) - 1} more" if len(firing or ended) > 1 else ""
    state = first.level if firing else "ended"
    again = " (still)" if notification.why == "repeated" else ""
    test = "TEST: " if notification.why == "tested" else ""
    return f"{test}[iotmq {state}]{again} {first.name}: {first.says}{more}"


def _lines(notification: Notification) -> Iterator[str]:
    if notification.why == "tested":
        yield "This is a test. Nothing is wrong."
        yield ""
    for title, alarms in (("Firing", notification.firing), ("Ended", notification.ended)):
        for alarm in alarms[:ALERTS_MAX]:
            yield from _alarm_lines(title, alarm)
            yield ""
        if len(alarms) > ALERTS_MAX:
            yield f"and {len(alarms) - ALERTS_MAX} more"
            yield ""


def _alarm_lines(title: str, alarm: Alarm) -> Iterator[str]:
    yield f"{title}: {alarm.name} ({alarm.level})"
    yield f"  {_one_line(alarm.says)}"
    yield from (f"  {name}: {_one_line(value)}" for name, value in alarm.labels)
    yield f"  since: {time_text(alarm.fired_ms)}"
    if alarm.ended_ms:
        yield f"  until: {time_text(alarm.ended_ms)}"
    if alarm.is_flapping:
        yield "  It comes and goes, and ends when it has been over for long enough."
    if alarm.acknowledged is not None:
        yield f"  looked after by {_one_line(alarm.acknowledged.by)}"
    yield f"  for: {alarm.owner}"
    yield f"  what to do: {alarm.what_to_do}"


def _one_line(text: str) -> str:
    """Return text without what would begin another line, or another header."""
    return "".join(each if each.isprintable() else " " for each in text)
