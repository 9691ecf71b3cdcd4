//! The commands of this listener: their names, how many arguments they take, and what `COMMAND` says of
//! them.

use super::reply::{Replies, Shown};
use super::request::Args;

/// What a client can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Throttle,
    Check,
    Peek,
    ResetKey,
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Select,
    Commands,
    Info,
    Config,
    Quit,
    Reset,
    Cluster,
    ReadOnly,
    ReadWrite,
    Asking,
    Multi,
    Exec,
    Discard,
}

/// One command as Redis describes it.
pub(super) struct Described {
    command: Command,
    pub(super) name: &'static str,
    /// Arguments with the name; at least so many if negative.
    arity: i64,
    flags: &'static [&'static str],
    /// Which argument is a key; 0: none.
    key: i64,
}

const FAST: &[&str] = &["fast"];
const CONNECTION: &[&str] = &["loading", "stale", "fast"];
const UNKNOWN_YET: &[&str] = &["no_auth", "loading", "stale", "fast"];

/// All of them, in the order of [`Command`]. Bound of the label `command`: these and `other`.
pub(super) const ALL: [Described; 22] = [
    // Whoever calls it with other arguments is told how to, in the peer's words.
    of(Command::Throttle, "cl.throttle", -1, &["write", "fast"], 1),
    of(Command::Check, "tg.check", -1, FAST, 0),
    of(Command::Peek, "tg.peek", -1, FAST, 0),
    of(Command::ResetKey, "tg.reset", 3, FAST, 0),
    of(Command::Ping, "ping", -1, FAST, 0),
    of(Command::Echo, "echo", 2, FAST, 0),
    of(Command::Hello, "hello", -1, UNKNOWN_YET, 0),
    of(Command::Auth, "auth", -2, UNKNOWN_YET, 0),
    of(Command::Client, "client", -2, CONNECTION, 0),
    of(Command::Select, "select", 2, CONNECTION, 0),
    of(Command::Commands, "command", -1, CONNECTION, 0),
    of(Command::Info, "info", -1, CONNECTION, 0),
    of(Command::Config, "config", -2, CONNECTION, 0),
    of(Command::Quit, "quit", -1, UNKNOWN_YET, 0),
    of(Command::Reset, "reset", 1, UNKNOWN_YET, 0),
    of(Command::Cluster, "cluster", -2, CONNECTION, 0),
    of(Command::ReadOnly, "readonly", 1, CONNECTION, 0),
    of(Command::ReadWrite, "readwrite", 1, CONNECTION, 0),
    of(Command::Asking, "asking", 1, CONNECTION, 0),
    of(Command::Multi, "multi", 1, CONNECTION, 0),
    of(Command::Exec, "exec", 1, CONNECTION, 0),
    of(Command::Discard, "discard", 1, CONNECTION, 0),
];

const fn of(
    command: Command,
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    key: i64,
) -> Described {
    Described { command, name, arity, flags, key }
}

impl Command {
    #[inline]
    pub(super) fn of(name: &[u8]) -> Option<Command> {
        // Nearly all of them are the first.
        let found = ALL.iter().find(|one| name.eq_ignore_ascii_case(one.name.as_bytes()))?;
        Some(found.command)
    }

    pub(super) fn described(self) -> &'static Described {
        &ALL[self as usize]
    }

    /// Whether it is obeyed before the caller has said who they are.
    #[inline]
    pub(super) fn is_for_strangers(self) -> bool {
        matches!(self, Command::Hello | Command::Auth | Command::Quit | Command::Reset)
    }

    /// Whether it is obeyed inside a transaction.
    #[inline]
    pub(super) fn is_of_transactions(self) -> bool {
        matches!(
            self,
            Command::Multi | Command::Exec | Command::Discard | Command::Quit | Command::Reset
        )
    }

    /// Whether it takes so many arguments, its name among them.
    #[inline]
    pub(super) fn takes(self, args: usize) -> bool {
        let (arity, args) = (self.described().arity, args as i64);
        if arity < 0 { args >= -arity } else { args == arity }
    }
}

/// `COMMAND` and what stands behind it.
pub(super) fn command(args: Args<'_>, replies: &mut Replies) {
    let sub = args.get(1).unwrap_or_default();
    let is = |name: &str| sub.eq_ignore_ascii_case(name.as_bytes());
    if args.len() == 1 {
        replies.array(ALL.len());
        ALL.iter().for_each(|one| describe(one, replies));
    } else if is("count") && args.len() == 2 {
        replies.integer(ALL.len() as i64);
    } else if is("docs") {
        // Nothing to tell beyond what the reference page does.
        replies.map(0);
    } else if is("list") && args.len() == 2 {
        replies.array(ALL.len());
        ALL.iter().for_each(|one| replies.text(one.name));
    } else if is("info") {
        let names = args.from(2);
        if names.len() == 0 {
            replies.array(ALL.len());
            ALL.iter().for_each(|one| describe(one, replies));
        } else {
            replies.array(names.len());
            for name in names {
                match Command::of(name) {
                    Some(command) => describe(command.described(), replies),
                    None => replies.null(),
                }
            }
        }
    } else if is("help") {
        help("COMMAND", &COMMAND_HELP, replies);
    } else if is("count") || is("list") {
        wrong_number(&format!("command|{}", sub.to_ascii_lowercase().escape_ascii()), replies);
    } else {
        unknown_subcommand(sub, "COMMAND", replies);
    }
}

/// As Redis 7 does.
fn describe(one: &Described, replies: &mut Replies) {
    replies.array(10);
    replies.text(one.name);
    replies.integer(one.arity);
    replies.set(one.flags.len());
    for flag in one.flags {
        replies.bulk(flag.as_bytes());
    }
    let step = i64::from(one.key > 0);
    for number in [one.key, one.key, step] {
        replies.integer(number);
    }
    // Categories, tips, specifications of keys, subcommands: none.
    replies.set(0);
    for _ in 0..3 {
        replies.array(0);
    }
}

const COMMAND_HELP: [&str; 4] = [
    "(nothing), INFO [name ...]: what is known of commands",
    "COUNT: how many there are",
    "LIST: their names",
    "DOCS [name ...]: nothing, in the right shape",
];

/// What `HELP` answers: what there is, a line each.
pub(super) fn help(command: &str, lines: &[&str], replies: &mut Replies) {
    replies.array(lines.len() + 1);
    replies.text(&format!("{command} <subcommand> [<arg> ...]. Subcommands are:"));
    lines.iter().for_each(|line| replies.text(line));
}

pub(super) fn unknown_subcommand(sub: &[u8], command: &str, replies: &mut Replies) {
    replies.error(format_args!("ERR unknown subcommand '{}'. Try {command} HELP.", Shown(sub)));
}

/// The most bytes of arguments that an error repeats.
const REPEATED_BYTES_MAX: usize = 128;

/// In Redis' words.
pub(super) fn unknown_command(args: Args<'_>, replies: &mut Replies) {
    let mut repeated = String::new();
    for arg in args.from(1) {
        if repeated.len() >= REPEATED_BYTES_MAX {
            break;
        }
        repeated +=
            &format!("'{}' ", Shown(&arg[..arg.len().min(REPEATED_BYTES_MAX - repeated.len())]));
    }
    let name = Shown(args.get(0).unwrap_or_default());
    replies
        .error(format_args!("ERR unknown command '{name}', with args beginning with: {repeated}"));
}

/// In Redis' words.
pub(super) fn wrong_number(name: &str, replies: &mut Replies) {
    replies.error(format_args!("ERR wrong number of arguments for '{name}' command"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_letters() {
        for (index, one) in ALL.iter().enumerate() {
            let command = Command::of(one.name.as_bytes()).unwrap();
            assert_eq!(command as usize, index, "every command stands in its place");
            assert_eq!(Command::of(one.name.to_uppercase().as_bytes()), Some(command));
            assert_eq!(command.described().name, one.name);
            assert_eq!(command.is_for_strangers(), one.flags.contains(&"no_auth"), "{}", one.name);
        }
        for name in [&b""[..], b"get", b"cl.throttl", b"cl.throttlee", b"\xff", &[b'x'; 1_000]] {
            assert_eq!(Command::of(name), None);
        }
        assert!(Command::Echo.takes(2) && !Command::Echo.takes(1) && !Command::Echo.takes(3));
        assert!(Command::Auth.takes(2) && Command::Auth.takes(9) && !Command::Auth.takes(1));
    }
}
