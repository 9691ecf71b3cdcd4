//! The body of a refusal.

use std::fmt::{self, Write};

use super::{Policy, RateLimitReply};
use crate::decision::{MAX_LIMITS, Refusal};
use crate::display_fn::DisplayFn;

/// The body of a refusal: JSON of RFC 9457, with the members `error`, `message` and `retryAfter`
/// for clients that know no problem types. `Display` writes it.
#[derive(Clone, Copy, Debug)]
pub struct ProblemDetails<'a> {
    pub(super) reply: RateLimitReply<'a>,
    pub(super) refusal: Refusal,
}

/// The registry of problem types.
const TYPES: &str = "https://iana.org/assignments/http-problem-types";

impl ProblemDetails<'_> {
    /// Value of the `Content-Type` header.
    pub const CONTENT_TYPE: &'static str = "application/problem+json";

    /// The HTTP status of the refusal: 503 where the store is at fault, otherwise 429.
    pub fn status(&self) -> u16 {
        if self.is_store_failure() { 503 } else { 429 }
    }

    /// The member `error`, the name of the status.
    pub fn error(&self) -> &'static str {
        if self.is_store_failure() { "Service Unavailable" } else { "Too Many Requests" }
    }

    /// The member `reason`, one word for programs.
    pub fn reason(&self) -> &'static str {
        self.refusal.name()
    }

    /// The member `message`, one sentence or two for people.
    pub fn message(&self) -> impl fmt::Display {
        let (cause, advice) = (self.cause(), self.advice());
        DisplayFn(move |f: &mut fmt::Formatter<'_>| write!(f, "{cause} {advice}"))
    }

    fn cause(&self) -> &'static str {
        match self.is_store_failure() {
            true => "The store of the rate limits does not answer.",
            false => "Rate limit exceeded.",
        }
    }

    /// Returns true if the store failed, and the client is not at fault.
    fn is_store_failure(&self) -> bool {
        self.refusal == Refusal::StoreUnavailable
    }

    /// The fragment of the member `type`, and the member `title`.
    fn kind(&self) -> (&'static str, &'static str) {
        match self.is_store_failure() {
            true => ("temporary-reduced-capacity", "Temporary reduced capacity"),
            false => ("quota-exceeded", "Quota exceeded"),
        }
    }

    /// The member `detail`: which limits refused, and what to do.
    pub fn detail(&self) -> impl fmt::Display {
        DisplayFn(|f: &mut fmt::Formatter<'_>| {
            match self.refusal {
                Refusal::OverLimit => {
                    self.write_limits(f, |_| true)?;
                    f.write_str(" no room for this request.")?;
                }
                Refusal::NeverFits => {
                    self.write_limits(f, |policy| policy.outcome.retry_after.is_never())?;
                    f.write_str(" less room than this request costs, even when unused.")?;
                }
                Refusal::Blocked => f.write_str("This caller is blocked.")?,
                Refusal::Busy => f.write_str("Too much of this caller's work is going on.")?,
                Refusal::EmptyKey => f.write_str("This request does not say who is calling.")?,
                Refusal::TooManyLimits => {
                    write!(f, "This request falls under more than {MAX_LIMITS} limits.")?;
                }
                Refusal::StoreUnavailable => f.write_str(self.cause())?,
                Refusal::QueueFull => f.write_str("Too many requests are waiting.")?,
                Refusal::Displaced => {
                    f.write_str("This request made room for a caller with fewer waiting ones.")?;
                }
                Refusal::WaitExpired => f.write_str("This request has waited too long.")?,
                Refusal::WaitTooLong => f.write_str("This request would wait too long.")?,
            }
            write!(f, " {}", self.advice())
        })
    }

    /// Writes `The limits api-1s (10/second), api-1m (100/minute) have`.
    fn write_limits(
        &self,
        f: &mut fmt::Formatter<'_>,
        which: impl Fn(&Policy<'_>) -> bool,
    ) -> fmt::Result {
        let limits = self.reply.violated_policies().filter(|policy| which(policy));
        let (article, verb) = match limits.clone().count() {
            0 => return f.write_str("A limit has"),
            1 => ("The limit ", " has"),
            _ => ("The limits ", " have"),
        };
        f.write_str(article)?;
        for (index, policy) in limits.enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            write!(f, "{} ({})", policy.name, policy.limit)?;
        }
        f.write_str(verb)
    }

    fn advice(&self) -> impl fmt::Display + use<> {
        let retry_after_s = self.reply.retry_after_s();
        DisplayFn(move |f: &mut fmt::Formatter<'_>| match retry_after_s {
            Some(seconds) => write!(f, "Retry in {seconds} s."),
            None => f.write_str("Waiting does not help."),
        })
    }
}

impl fmt::Display for ProblemDetails<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((kind, title), status) = (self.kind(), self.status());
        write!(f, r#"{{"type":"{TYPES}#{kind}","title":"{title}","status":{status},"detail":"#)?;
        write_json(f, self.detail())?;
        f.write_str(r#","violated-policies":["#)?;
        for (index, policy) in self.reply.violated_policies().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            write_json(f, policy.name)?;
        }
        let (reason, error) = (self.reason(), self.error());
        write!(f, r#"],"reason":"{reason}","error":"{error}","message":"#)?;
        write_json(f, self.message())?;
        match self.reply.retry_after_s() {
            Some(seconds) => write!(f, r#","retryAfter":{seconds}}}"#),
            None => f.write_str(r#","retryAfter":null}"#),
        }
    }
}

/// Writes any text as a JSON string.
pub(super) fn write_json(f: &mut fmt::Formatter<'_>, text: impl fmt::Display) -> fmt::Result {
    f.write_char('"')?;
    write!(JsonText(f), "{text}")?;
    f.write_char('"')
}

/// Escapes text for JSON. U+2028 and U+2029 are valid in JSON, but end a line in the JavaScript of
/// old clients.
struct JsonText<'f, 'b>(&'f mut fmt::Formatter<'b>);

impl Write for JsonText<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '"' | '\\' => write!(self.0, "\\{c}")?,
                '\n' => self.0.write_str("\\n")?,
                '\r' => self.0.write_str("\\r")?,
                '\t' => self.0.write_str("\\t")?,
                '\0'..' ' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                    write!(self.0, "\\u{:04x}", u32::from(c))?;
                }
                _ => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}
