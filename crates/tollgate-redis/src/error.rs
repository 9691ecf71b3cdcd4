//! Why a shared store did not answer. Never a refusal: that is an answer.

use std::fmt;

use tollgate_shared::RemoteError;

/// Kinds of failure, each with a label in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// No answer within the deadline.
    Timeout,
    /// The limit of calls in flight is reached.
    Overloaded,
    /// No connection can be made.
    Connect,
    /// The connection ended before the answer came.
    Closed,
    /// The bytes received are not a valid reply.
    Protocol,
    /// It has not answered lately, and it is not yet time to try again.
    BreakerOpen,
    /// The server does not have the script.
    NoScript,
    /// The slot is at another node of the cluster.
    Moved,
    /// The slot is moving, and this key has left.
    Ask,
    /// The slot is moving, and the keys of this call are partly here and partly there.
    TryAgain,
    /// The cluster does not answer, or has no node for this slot.
    ClusterDown,
    /// The keys of a call are in different slots.
    CrossSlot,
    /// The server is a replica.
    ReadOnly,
    /// The server is reading its data after a start.
    Loading,
    /// A script has kept the server busy for seconds.
    Busy,
    /// A replica has lost its primary.
    MasterDown,
    /// Too few replicas are connected for writing.
    NoReplicas,
    /// The server cannot save its data and refuses writing.
    Misconf,
    /// The server's memory is used up.
    Oom,
    /// The user name or the password is missing or wrong.
    NoAuth,
    /// The user may not do this.
    NoPerm,
    /// The server has as many connections as it takes.
    MaxClients,
    /// Others kept changing the state meanwhile.
    Contended,
    /// Any other error of the server.
    Other,
}

impl ErrorClass {
    /// All of them, in the order of their declaration.
    pub const ALL: [ErrorClass; 24] = [
        ErrorClass::Timeout,
        ErrorClass::Overloaded,
        ErrorClass::Connect,
        ErrorClass::Closed,
        ErrorClass::Protocol,
        ErrorClass::BreakerOpen,
        ErrorClass::NoScript,
        ErrorClass::Moved,
        ErrorClass::Ask,
        ErrorClass::TryAgain,
        ErrorClass::ClusterDown,
        ErrorClass::CrossSlot,
        ErrorClass::ReadOnly,
        ErrorClass::Loading,
        ErrorClass::Busy,
        ErrorClass::MasterDown,
        ErrorClass::NoReplicas,
        ErrorClass::Misconf,
        ErrorClass::Oom,
        ErrorClass::NoAuth,
        ErrorClass::NoPerm,
        ErrorClass::MaxClients,
        ErrorClass::Contended,
        ErrorClass::Other,
    ];

    /// The label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorClass::Timeout => "timeout",
            ErrorClass::Overloaded => "overloaded",
            ErrorClass::Connect => "connect",
            ErrorClass::Closed => "closed",
            ErrorClass::Protocol => "protocol",
            ErrorClass::BreakerOpen => "breaker_open",
            ErrorClass::NoScript => "noscript",
            ErrorClass::Moved => "moved",
            ErrorClass::Ask => "ask",
            ErrorClass::TryAgain => "tryagain",
            ErrorClass::ClusterDown => "clusterdown",
            ErrorClass::CrossSlot => "crossslot",
            ErrorClass::ReadOnly => "readonly",
            ErrorClass::Loading => "loading",
            ErrorClass::Busy => "busy",
            ErrorClass::MasterDown => "masterdown",
            ErrorClass::NoReplicas => "noreplicas",
            ErrorClass::Misconf => "misconf",
            ErrorClass::Oom => "oom",
            ErrorClass::NoAuth => "noauth",
            ErrorClass::NoPerm => "noperm",
            ErrorClass::MaxClients => "maxclients",
            ErrorClass::Contended => "contended",
            ErrorClass::Other => "other",
        }
    }

    /// Returns true if the node should not be asked for a while. The other classes concern one
    /// call, or the choice of the node.
    pub(crate) const fn opens_breaker(self) -> bool {
        !matches!(
            self,
            ErrorClass::BreakerOpen
                | ErrorClass::NoScript
                | ErrorClass::Moved
                | ErrorClass::Ask
                | ErrorClass::TryAgain
                | ErrorClass::CrossSlot
                | ErrorClass::Contended
                | ErrorClass::Other
        )
    }

    /// Returns true if a reply of this class says that nothing was executed, and how to retry.
    pub(crate) const fn redirects(self) -> bool {
        matches!(
            self,
            ErrorClass::NoScript | ErrorClass::Moved | ErrorClass::Ask | ErrorClass::TryAgain
        )
    }

    /// Returns true if the store certainly did not execute the request.
    pub const fn certainly_not_executed(self) -> bool {
        !matches!(
            self,
            ErrorClass::Timeout | ErrorClass::Closed | ErrorClass::Protocol | ErrorClass::Other
        )
    }

    /// Returns true if the connection must be replaced: a new one may reach another server, or this
    /// one in another state.
    pub(crate) const fn drops_connection(self) -> bool {
        matches!(
            self,
            ErrorClass::Closed
                | ErrorClass::Protocol
                | ErrorClass::ReadOnly
                | ErrorClass::Loading
                | ErrorClass::MasterDown
                | ErrorClass::NoAuth
        )
    }

    /// Classifies an error reply of the server.
    pub(crate) fn of_reply(text: &str) -> ErrorClass {
        let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
        match code {
            "NOSCRIPT" => ErrorClass::NoScript,
            "MOVED" => ErrorClass::Moved,
            "ASK" => ErrorClass::Ask,
            "TRYAGAIN" => ErrorClass::TryAgain,
            "CLUSTERDOWN" => ErrorClass::ClusterDown,
            "CROSSSLOT" => ErrorClass::CrossSlot,
            "READONLY" => ErrorClass::ReadOnly,
            "LOADING" => ErrorClass::Loading,
            "BUSY" => ErrorClass::Busy,
            "MASTERDOWN" => ErrorClass::MasterDown,
            "NOREPLICAS" => ErrorClass::NoReplicas,
            "MISCONF" => ErrorClass::Misconf,
            "OOM" => ErrorClass::Oom,
            "NOAUTH" | "WRONGPASS" => ErrorClass::NoAuth,
            "NOPERM" => ErrorClass::NoPerm,
            "ERR" if rest.starts_with("max number of clients") => ErrorClass::MaxClients,
            "ERR" if rest.starts_with("invalid password") => ErrorClass::NoAuth,
            // The password is given, and the server wants none: the wrong server, or a forgotten
            // setting. Worth more than "other".
            "ERR" if rest.contains("without any password configured") => ErrorClass::NoAuth,
            // A script that ran into an error of the server tells it behind words of its own.
            _ => class_in_script_error(text),
        }
    }
}

// Failures are counted by the number of their class: one that is not in the list would have no place.
const _: () = {
    let mut index = 0;
    while index < ErrorClass::ALL.len() {
        assert!(ErrorClass::ALL[index] as usize == index);
        index += 1;
    }
    assert!(ErrorClass::Other as usize + 1 == ErrorClass::ALL.len());
};

/// The code that an error inside a script carries. Servers before 7 write it as
/// `ERR Error running script (call to f_…): @user_script:1: -OOM command not allowed …`.
fn class_in_script_error(text: &str) -> ErrorClass {
    const INSIDE: [(&str, ErrorClass); 6] = [
        ("-OOM ", ErrorClass::Oom),
        ("-READONLY ", ErrorClass::ReadOnly),
        ("-MISCONF ", ErrorClass::Misconf),
        ("-NOREPLICAS ", ErrorClass::NoReplicas),
        ("-NOPERM ", ErrorClass::NoPerm),
        ("can't run this command or subcommand", ErrorClass::NoPerm),
    ];
    INSIDE
        .iter()
        .find(|(sign, _)| text.contains(sign))
        .map_or(ErrorClass::Other, |&(_, class)| class)
}

/// A failure of a shared store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// The class of the failure.
    pub class: ErrorClass,
    /// The message of the store or the system, without keys and passwords.
    pub detail: Box<str>,
    /// True if the request was never sent, or came back unexecuted: it can be retried, whatever the
    /// class.
    pub not_executed: bool,
}

/// Bytes of a server's text that are kept.
const DETAIL_MAX: usize = 200;
/// Bytes kept of a redirection, which is parsed later: room for the longest host.
const REDIRECTION_MAX: usize = 300;

impl StoreError {
    pub(crate) fn new(class: ErrorClass, detail: impl Into<Box<str>>) -> StoreError {
        StoreError { class, detail: detail.into(), not_executed: false }
    }

    /// The same about a question that was never sent, or that changes nothing.
    pub(crate) fn mark_not_executed(self) -> StoreError {
        StoreError { not_executed: true, ..self }
    }

    /// Makes an error of an error reply. Its text is cut and kept on one line, because the server
    /// is not trusted.
    pub(crate) fn of_reply(text: &str) -> StoreError {
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let class = ErrorClass::of_reply(text);
        let most = match class {
            ErrorClass::Moved | ErrorClass::Ask => REDIRECTION_MAX,
            _ => DETAIL_MAX,
        };
        let mut detail: String = text.chars().take(most).map(clean).collect();
        // Some errors quote what they were sent.
        if let Some(at) = detail.find(", with args beginning with") {
            detail.truncate(at);
        }
        StoreError::new(class, detail)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the shared store did not answer ({}): {}", self.class.name(), self.detail)
    }
}

impl std::error::Error for StoreError {}

impl RemoteError for StoreError {
    fn certainly_not_executed(&self) -> bool {
        self.not_executed || self.class.certainly_not_executed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_their_class() {
        for (text, class) in [
            ("NOSCRIPT No matching script. Please use EVAL.", "noscript"),
            ("MOVED 866 127.0.0.1:7002", "moved"),
            ("ASK 866 127.0.0.1:7002", "ask"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "tryagain"),
            ("CLUSTERDOWN The cluster is down", "clusterdown"),
            ("CLUSTERDOWN Hash slot not served", "clusterdown"),
            ("CROSSSLOT Keys in request don't hash to the same slot", "crossslot"),
            ("READONLY You can't write against a read only replica.", "readonly"),
            ("LOADING Redis is loading the dataset in memory", "loading"),
            ("BUSY Redis is busy running a script.", "busy"),
            ("MASTERDOWN Link with MASTER is down", "masterdown"),
            ("NOREPLICAS Not enough good replicas to write.", "noreplicas"),
            ("MISCONF Redis is configured to save RDB snapshots", "misconf"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
            ("NOAUTH Authentication required.", "noauth"),
            ("WRONGPASS invalid username-password pair or user is disabled.", "noauth"),
            ("ERR invalid password", "noauth"),
            ("NOPERM this user has no permissions to run the 'evalsha' command", "noperm"),
            ("ERR max number of clients reached", "maxclients"),
            ("ERR Error running script (call to f_1): @user_script:1: -OOM command not", "oom"),
            ("ERR syntax error", "other"),
            ("", "other"),
            (" ", "other"),
        ] {
            assert_eq!(ErrorClass::of_reply(text).name(), class, "{text}");
        }
    }

    #[test]
    fn only_what_was_certainly_not_done_is_asked_for_again() {
        let unknown: Vec<_> = ErrorClass::ALL
            .into_iter()
            .filter(|class| !class.certainly_not_executed())
            .map(ErrorClass::name)
            .collect();
        assert_eq!(unknown, ["timeout", "closed", "protocol", "other"]);
    }

    #[test]
    fn names_are_labels_and_differ() {
        let mut names: Vec<_> = ErrorClass::ALL.iter().map(|class| class.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorClass::ALL.len());
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
    }

    #[test]
    fn the_reference_has_every_class_and_no_other() {
        let page = include_str!("../../../docs/reference/store-urls.md");
        let (_, table) = page.split_once("<!-- table: classes -->\n").unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|')).skip(2);
        let found: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        let classes: Vec<_> = ErrorClass::ALL.iter().map(|class| class.name()).collect();
        assert_eq!(found, classes);
    }

    #[test]
    fn what_a_server_says_is_cut_kept_on_a_line_and_quotes_no_arguments() {
        let long = StoreError::of_reply(&"ä\n\u{1b}[31m".repeat(1000));
        assert!(long.detail.chars().count() <= DETAIL_MAX);
        assert!(!long.detail.chars().any(char::is_control));
        let quoting = "ERR unknown command 'X', with args beginning with: 'user:42' 'secret'";
        assert_eq!(&*StoreError::of_reply(quoting).detail, "ERR unknown command 'X'");
    }
}
