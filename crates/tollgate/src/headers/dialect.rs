//! Header fields of a reply, and the names of their dialects in configuration.

use std::fmt;
use std::str::FromStr;

/// A header field of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateLimitField {
    /// `X-RateLimit-Limit`
    XLimit,
    /// `X-RateLimit-Remaining`
    XRemaining,
    /// `X-RateLimit-Reset`
    XReset,
    /// `X-RateLimit-Warning`: soft limits that are exceeded, by name. It belongs to no dialect;
    /// callers that know such limits add it.
    XWarning,
    /// `RateLimit-Policy`
    Policy,
    /// `RateLimit`
    RateLimit,
    /// `RateLimit-Limit`
    Limit,
    /// `RateLimit-Remaining`
    Remaining,
    /// `RateLimit-Reset`
    Reset,
    /// `Retry-After`
    RetryAfter,
    /// `Cache-Control`
    CacheControl,
}

impl RateLimitField {
    /// The one list of fields.
    pub const ALL: [RateLimitField; 11] = [
        RateLimitField::XLimit,
        RateLimitField::XRemaining,
        RateLimitField::XReset,
        RateLimitField::XWarning,
        RateLimitField::Policy,
        RateLimitField::RateLimit,
        RateLimitField::Limit,
        RateLimitField::Remaining,
        RateLimitField::Reset,
        RateLimitField::RetryAfter,
        RateLimitField::CacheControl,
    ];

    /// The name of the field as it is sent.
    pub const fn name(self) -> &'static str {
        match self {
            RateLimitField::XLimit => "X-RateLimit-Limit",
            RateLimitField::XRemaining => "X-RateLimit-Remaining",
            RateLimitField::XReset => "X-RateLimit-Reset",
            RateLimitField::XWarning => "X-RateLimit-Warning",
            RateLimitField::Policy => "RateLimit-Policy",
            RateLimitField::RateLimit => "RateLimit",
            RateLimitField::Limit => "RateLimit-Limit",
            RateLimitField::Remaining => "RateLimit-Remaining",
            RateLimitField::Reset => "RateLimit-Reset",
            RateLimitField::RetryAfter => "Retry-After",
            RateLimitField::CacheControl => "Cache-Control",
        }
    }
}

/// A format of limits in header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the binding limit; the reset is the Unix
    /// second when it is full again.
    XRateLimit,
    /// `RateLimit-Policy` and `RateLimit`, draft-ietf-httpapi-ratelimit-headers-11: every policy
    /// by name, a refusal only those that refused.
    Draft,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` and `-Policy`, the same draft up to -06; the reset
    /// counts seconds from now.
    Legacy,
}

impl Dialect {
    /// The one list of dialects.
    pub const ALL: [Dialect; 3] = [Dialect::XRateLimit, Dialect::Draft, Dialect::Legacy];

    /// The dialects that are sent by default.
    pub const DEFAULT: [Dialect; 2] = [Dialect::XRateLimit, Dialect::Draft];

    /// The name used in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::XRateLimit => "x-ratelimit",
            Dialect::Draft => "draft",
            Dialect::Legacy => "legacy",
        }
    }

    /// Reads a list of names; `none` alone is the empty list.
    ///
    /// ```
    /// use tollgate::headers::Dialect;
    ///
    /// assert_eq!(Dialect::parse_list(["draft", "legacy"])?, [Dialect::Draft, Dialect::Legacy]);
    /// assert_eq!(Dialect::parse_list(["none"])?, []);
    /// # Ok::<(), tollgate::headers::HeaderError>(())
    /// ```
    pub fn parse_list<'t>(
        names: impl IntoIterator<Item = &'t str>,
    ) -> Result<Vec<Dialect>, HeaderError> {
        let mut dialects = Vec::with_capacity(Dialect::ALL.len());
        let (mut none, mut count) = (false, 0);
        for name in names {
            count += 1;
            if name == "none" {
                none = true;
                continue;
            }
            let dialect = name.parse()?;
            if !dialects.contains(&dialect) {
                dialects.push(dialect);
            }
        }
        if none && count > 1 {
            return Err(HeaderError(
                "the header dialect `none` stands beside others: write `none` alone, or leave it out"
                    .into(),
            ));
        }
        Ok(dialects)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dialect {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Dialect, HeaderError> {
        Dialect::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or_else(|| {
            let names = Dialect::ALL.map(Dialect::name).join(", ");
            HeaderError(format!(
                "there is no header dialect {text:?}: write any of {names}, or `none` alone"
            ))
        })
    }
}

/// The reason why a policy name or a dialect cannot be used, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderError(pub(super) String);

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HeaderError {}
