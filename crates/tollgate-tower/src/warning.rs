//! Signs, seen at run time, that the layer is not used as it was meant. Each is told once for a layer.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// How many requests of a layer are watched for signs of misuse: later ones cost nothing.
pub const WATCHED_REQUESTS: u32 = 10_000;

/// Something looks wrong about how the layer is used. `Display` says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// A forwarding header came, and nobody is trusted to write one.
    ForwardedIgnored,
    /// One request passed the same layer twice.
    AppliedTwice,
    /// Requests from several callers all had one key.
    OneKey,
    /// A request had no key.
    NoKey,
    /// Rules decide, and the layer did not find the address at the other end of the connection.
    NoPeer,
}

impl Warning {
    /// All of them.
    pub const ALL: [Warning; 5] = [
        Warning::ForwardedIgnored,
        Warning::AppliedTwice,
        Warning::OneKey,
        Warning::NoKey,
        Warning::NoPeer,
    ];
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Warning::ForwardedIgnored => {
                "a request has X-Forwarded-For or Forwarded and its peer is not a trusted proxy: behind \
                 a proxy all callers count as that proxy. Name your proxies, as in \
                 `KeyFrom::client_ip_behind(TrustedProxies::new([\"10.0.0.0/8\"])?)`, or in rules \
                 `identify: { trusted_peers: [10.0.0.0/8] }`. Without a proxy a client made it up, and \
                 nothing is wrong"
            }
            Warning::AppliedTwice => {
                "a request passed the same layer twice and was charged twice: apply it once, to the \
                 router or to its routes"
            }
            Warning::OneKey => {
                "the first 1,000 requests came from several callers and all had one key: they share one \
                 limit. Look at the layer's key, or say `KeyFrom::global()` if that is meant"
            }
            Warning::NoKey => {
                "a request has no key, so it shares one with all others that have none. If the key is the \
                 client's address, tell the layer where to find it with `.peer(…)`; with axum also serve \
                 with `into_make_service_with_connect_info`"
            }
            Warning::NoPeer => {
                "the layer does not find the address at the other end of a connection, so rules with \
                 `{ip}` in their key do not apply and no proxy is trusted: tell it where to look with \
                 `.peer(…)`; with axum also serve with `into_make_service_with_connect_info`"
            }
        })
    }
}

/// To standard error, if there is one.
pub(crate) fn write(warning: Warning) {
    // Not `eprintln!`, which panics where standard error is closed.
    let _ = writeln!(io::stderr(), "warning: tollgate-tower: {warning}");
}

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct MisuseWatch {
    requests: AtomicU32,
    /// A bit for each that was told. Bound: [`Warning::ALL`].
    reported: AtomicU8,
}

impl MisuseWatch {
    /// Whether to look at this request.
    pub(crate) fn watches(&self) -> bool {
        // The counter is written for the first requests only: later it would be a line that all
        // processors fight about.
        self.requests.load(Ordering::Relaxed) < WATCHED_REQUESTS
            && self.requests.fetch_add(1, Ordering::Relaxed) < WATCHED_REQUESTS
    }

    /// Whether this is the first time.
    pub(crate) fn is_first_report(&self, warning: Warning) -> bool {
        let bit = 1 << warning as u8;
        self.reported.load(Ordering::Relaxed) & bit == 0
            && self.reported.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_news_once_and_the_first_requests_are_watched() {
        let watch = MisuseWatch::default();
        for warning in Warning::ALL {
            assert_eq!(
                [watch.is_first_report(warning), watch.is_first_report(warning)],
                [true, false]
            );
        }
        let watched = (0..WATCHED_REQUESTS + 5).filter(|_| watch.watches()).count();
        assert_eq!(watched, WATCHED_REQUESTS as usize);
    }
}
