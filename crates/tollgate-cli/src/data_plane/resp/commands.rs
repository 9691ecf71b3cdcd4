//! The table of commands: names, numbers of arguments, and the reply of `COMMAND`.

use super::replies::{Replies, TruncatedText};
use super::request::RespArgs;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespCommand {
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

/// Description of a command, as in Redis.
pub(super) struct CommandInfo {
    command: RespCommand,
    pub(super) name: &'static str,
    /// Number of arguments including the name; if negative, the minimum.
    arity: i64,
    flags: &'static [&'static str],
    /// Index of the argument that is a key; 0 if there is none.
    key: i64,
}

const FAST_FLAGS: &[&str] = &["fast"];
const CONNECTION_FLAGS: &[&str] = &["loading", "stale", "fast"];
const NO_AUTH_FLAGS: &[&str] = &["no_auth", "loading", "stale", "fast"];

/// All commands, in the order of [`RespCommand`]. Bound of the label `command`: these and `other`.
pub(super) const COMMANDS: [CommandInfo; 22] = [
    // Any number of arguments: wrong ones get redis-cell's usage text.
    command_info(RespCommand::Throttle, "cl.throttle", -1, &["write", "fast"], 1),
    command_info(RespCommand::Check, "tg.check", -1, FAST_FLAGS, 0),
    command_info(RespCommand::Peek, "tg.peek", -1, FAST_FLAGS, 0),
    command_info(RespCommand::ResetKey, "tg.reset", 3, FAST_FLAGS, 0),
    command_info(RespCommand::Ping, "ping", -1, FAST_FLAGS, 0),
    command_info(RespCommand::Echo, "echo", 2, FAST_FLAGS, 0),
    command_info(RespCommand::Hello, "hello", -1, NO_AUTH_FLAGS, 0),
    command_info(RespCommand::Auth, "auth", -2, NO_AUTH_FLAGS, 0),
    command_info(RespCommand::Client, "client", -2, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Select, "select", 2, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Commands, "command", -1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Info, "info", -1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Config, "config", -2, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Quit, "quit", -1, NO_AUTH_FLAGS, 0),
    command_info(RespCommand::Reset, "reset", 1, NO_AUTH_FLAGS, 0),
    command_info(RespCommand::Cluster, "cluster", -2, CONNECTION_FLAGS, 0),
    command_info(RespCommand::ReadOnly, "readonly", 1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::ReadWrite, "readwrite", 1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Asking, "asking", 1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Multi, "multi", 1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Exec, "exec", 1, CONNECTION_FLAGS, 0),
    command_info(RespCommand::Discard, "discard", 1, CONNECTION_FLAGS, 0),
];

const fn command_info(
    command: RespCommand,
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    key: i64,
) -> CommandInfo {
    CommandInfo { command, name, arity, flags, key }
}

impl RespCommand {
    #[inline]
    pub(super) fn from_name(name: &[u8]) -> Option<RespCommand> {
        // Most calls are the first of the table.
        let found = COMMANDS.iter().find(|one| name.eq_ignore_ascii_case(one.name.as_bytes()))?;
        Some(found.command)
    }

    pub(super) fn info(self) -> &'static CommandInfo {
        &COMMANDS[self as usize]
    }

    /// Returns true if it is allowed before authentication.
    #[inline]
    pub(super) fn is_allowed_before_auth(self) -> bool {
        matches!(
            self,
            RespCommand::Hello | RespCommand::Auth | RespCommand::Quit | RespCommand::Reset
        )
    }

    /// Returns true if it is allowed inside a transaction.
    #[inline]
    pub(super) fn is_allowed_in_transaction(self) -> bool {
        matches!(
            self,
            RespCommand::Multi
                | RespCommand::Exec
                | RespCommand::Discard
                | RespCommand::Quit
                | RespCommand::Reset
        )
    }

    /// Returns true if it takes this number of arguments, including its name.
    #[inline]
    pub(super) fn accepts_arg_count(self, args: usize) -> bool {
        let (arity, args) = (self.info().arity, args as i64);
        if arity < 0 { args >= -arity } else { args == arity }
    }
}

/// `COMMAND` and its subcommands.
pub(super) fn command(args: RespArgs<'_>, replies: &mut Replies) {
    let sub = args.get(1).unwrap_or_default();
    let is = |name: &str| sub.eq_ignore_ascii_case(name.as_bytes());
    if args.len() == 1 {
        replies.array(COMMANDS.len());
        COMMANDS.iter().for_each(|one| write_command_info(one, replies));
    } else if is("count") && args.len() == 2 {
        replies.integer(COMMANDS.len() as i64);
    } else if is("docs") {
        // The documentation is on the reference page.
        replies.map(0);
    } else if is("list") && args.len() == 2 {
        replies.array(COMMANDS.len());
        COMMANDS.iter().for_each(|one| replies.text(one.name));
    } else if is("info") {
        let names = args.from(2);
        if names.len() == 0 {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|one| write_command_info(one, replies));
        } else {
            replies.array(names.len());
            for name in names {
                match RespCommand::from_name(name) {
                    Some(command) => write_command_info(command.info(), replies),
                    None => replies.null(),
                }
            }
        }
    } else if is("help") {
        help("COMMAND", &COMMAND_HELP, replies);
    } else if is("count") || is("list") {
        wrong_arg_count(&format!("command|{}", sub.to_ascii_lowercase().escape_ascii()), replies);
    } else {
        unknown_subcommand(sub, "COMMAND", replies);
    }
}

/// Writes the description of a command in the format of Redis 7.
fn write_command_info(one: &CommandInfo, replies: &mut Replies) {
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
    // No categories, tips, key specifications or subcommands.
    replies.set(0);
    for _ in 0..3 {
        replies.array(0);
    }
}

const COMMAND_HELP: [&str; 4] = [
    "(no subcommand), INFO [name ...]: details of commands",
    "COUNT: number of commands",
    "LIST: names of commands",
    "DOCS [name ...]: an empty map",
];

/// Writes the reply of `HELP`: one line per subcommand.
pub(super) fn help(command: &str, lines: &[&str], replies: &mut Replies) {
    replies.array(lines.len() + 1);
    replies.text(&format!("{command} <subcommand> [<arg> ...]. Subcommands are:"));
    lines.iter().for_each(|line| replies.text(line));
}

pub(super) fn unknown_subcommand(sub: &[u8], command: &str, replies: &mut Replies) {
    replies.error(format_args!(
        "ERR unknown subcommand '{}'. Try {command} HELP.",
        TruncatedText(sub)
    ));
}

/// Maximum bytes of arguments that an error repeats.
const REPEATED_BYTES_MAX: usize = 128;

/// Writes the error for an unknown command, with the text of Redis.
pub(super) fn unknown_command(args: RespArgs<'_>, replies: &mut Replies) {
    let mut repeated = String::new();
    for arg in args.from(1) {
        if repeated.len() >= REPEATED_BYTES_MAX {
            break;
        }
        repeated += &format!(
            "'{}' ",
            TruncatedText(&arg[..arg.len().min(REPEATED_BYTES_MAX - repeated.len())])
        );
    }
    let name = TruncatedText(args.get(0).unwrap_or_default());
    replies
        .error(format_args!("ERR unknown command '{name}', with args beginning with: {repeated}"));
}

/// Writes the error for a wrong number of arguments, with the text of Redis.
pub(super) fn wrong_arg_count(name: &str, replies: &mut Replies) {
    replies.error(format_args!("ERR wrong number of arguments for '{name}' command"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_letters() {
        for (index, one) in COMMANDS.iter().enumerate() {
            let command = RespCommand::from_name(one.name.as_bytes()).unwrap();
            assert_eq!(command as usize, index, "every command stands in its place");
            assert_eq!(RespCommand::from_name(one.name.to_uppercase().as_bytes()), Some(command));
            assert_eq!(command.info().name, one.name);
            assert_eq!(
                command.is_allowed_before_auth(),
                one.flags.contains(&"no_auth"),
                "{}",
                one.name
            );
        }
        for name in [&b""[..], b"get", b"cl.throttl", b"cl.throttlee", b"\xff", &[b'x'; 1_000]] {
            assert_eq!(RespCommand::from_name(name), None);
        }
        assert!(
            RespCommand::Echo.accepts_arg_count(2)
                && !RespCommand::Echo.accepts_arg_count(1)
                && !RespCommand::Echo.accepts_arg_count(3)
        );
        assert!(
            RespCommand::Auth.accepts_arg_count(2)
                && RespCommand::Auth.accepts_arg_count(9)
                && !RespCommand::Auth.accepts_arg_count(1)
        );
    }
}
