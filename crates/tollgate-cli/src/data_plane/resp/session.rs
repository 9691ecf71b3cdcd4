//! Connection commands: authentication, protocol version, client names, transactions, and information about the
//! server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::audit::RespPeer;
use super::commands::{RespCommand, help, unknown_subcommand, wrong_arg_count};
use super::replies::{Replies, RespVersion, TruncatedText};
use super::request::RespArgs;
use crate::listeners::tokens::Tokens;

/// Redis version that is reported to clients, some of which choose their commands by it.
const REDIS_VERSION: &str = "7.2.0";

/// Maximum bytes of the name of a client or of its library.
const NAME_BYTES_MAX: usize = 256;

const NOAUTH: &str = "NOAUTH Authentication required.";
const NOAUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, \
    otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
    select the RESP protocol version at the same time";
const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the \
    default user. Are you sure your configuration is correct?";
const NO_TRANSACTIONS: &str = "ERR transactions are not supported, and commands between MULTI and EXEC are not \
    counted: send the commands as a plain pipeline (redis-py: pipeline(transaction=False), ioredis: \
    pipeline())";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters, or be longer than 256 bytes.";

const CLIENT_HELP: [&str; 6] = [
    "ID: the id of this connection",
    "GETNAME, SETNAME name: the name of this connection",
    "SETINFO LIB-NAME|LIB-VER value: name and version of the client library",
    "INFO, LIST: details of this connection",
    "NO-EVICT ON|OFF, NO-TOUCH ON|OFF: accepted, without effect",
    "REPLY ON|OFF|SKIP: switch replies on or off; SKIP omits the next one",
];

/// Reply mode, set by `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyMode {
    On,
    Off,
    /// The next command gets no reply.
    Skip,
}

/// State of one client.
#[derive(Debug)]
pub(super) struct RespSession {
    id: u64,
    peer: SocketAddr,
    /// The client is authenticated, or no token is required.
    pub(super) admitted: bool,
    /// Number of its token in the token file, from 1.
    token: Option<usize>,
    /// The last command carried a wrong token.
    pub(super) wrong_token_shown: bool,
    /// The connection closes after the current command.
    pub(super) is_leaving: bool,
    pub(super) reply_mode: ReplyMode,
    /// Number of commands refused since `MULTI`; `None` outside a transaction.
    transaction: Option<u64>,
    /// Name of the client. Bound of this and the next two: [`NAME_BYTES_MAX`].
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
}

impl RespSession {
    pub(super) fn new(peer: SocketAddr, tokens: Option<&Tokens>) -> RespSession {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        RespSession {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            peer,
            admitted: tokens.is_none(),
            token: None,
            wrong_token_shown: false,
            is_leaving: false,
            reply_mode: ReplyMode::On,
            transaction: None,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
        }
    }

    /// `AUTH token` or `AUTH user token`; the user name is ignored.
    pub(super) fn auth(
        &mut self,
        args: RespArgs<'_>,
        tokens: Option<&Tokens>,
        replies: &mut Replies,
    ) {
        let (user, token) = match (args.get(1), args.get(2), args.len()) {
            (Some(token), None, _) if tokens.is_some() => (None, token),
            (Some(_), None, _) => return replies.error(NO_PASSWORD),
            (Some(user), Some(token), 3) => (Some(user), token),
            _ => return replies.error("ERR syntax error"),
        };
        match self.admit(user, token, tokens) {
            true => replies.ok(),
            false => replies.error(WRONGPASS),
        }
    }

    fn admit(&mut self, user: Option<&[u8]>, token: &[u8], tokens: Option<&Tokens>) -> bool {
        let good = match tokens {
            Some(tokens) => {
                let number = tokens.find(token);
                self.token = number.or(self.token);
                number.is_some()
            }
            // Like Redis without passwords, which has one user.
            None => user.is_none_or(|user| user == b"default"),
        };
        self.admitted |= good;
        self.wrong_token_shown = !good;
        good
    }

    pub(super) fn resp_peer(&self) -> RespPeer {
        RespPeer { peer: self.peer, token: self.token }
    }

    /// `HELLO [version [AUTH user token] [SETNAME name]]`.
    pub(super) fn hello(
        &mut self,
        args: RespArgs<'_>,
        tokens: Option<&Tokens>,
        replies: &mut Replies,
    ) {
        let mut dialect = replies.version;
        if let Some(version) = args.get(1) {
            dialect = match integer(version) {
                Some(2) => RespVersion::Resp2,
                Some(3) => RespVersion::Resp3,
                Some(_) => return replies.error("NOPROTO unsupported protocol version"),
                None => {
                    let text = "ERR Protocol version is not an integer or out of range";
                    return replies.error(text);
                }
            };
        }
        // All options are parsed before one takes effect: an error changes nothing.
        let (mut shown, mut name) = (None, None);
        let mut options = args.from(2);
        while let Some(option) = options.next() {
            let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
            if is("auth") && options.len() >= 2 {
                shown = options.next().zip(options.next());
            } else if is("setname") && options.len() >= 1 {
                name = options.next();
            } else {
                let option = TruncatedText(option);
                return replies.error(format_args!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
        if name.is_some_and(|name| !is_name(name)) {
            return replies.error(BAD_NAME);
        }
        if let Some((user, token)) = shown
            && !self.admit(Some(user), token, tokens)
        {
            return replies.error(WRONGPASS);
        }
        if !self.admitted {
            return replies.error(NOAUTH_HELLO);
        }
        if let Some(name) = name {
            self.name = name.to_vec();
        }
        replies.version = dialect;
        self.write_hello_reply(replies);
    }

    fn write_hello_reply(&self, replies: &mut Replies) {
        replies.map(7);
        for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
            replies.text(field);
            replies.text(value);
        }
        replies.text("proto");
        replies.integer(proto(replies.version));
        replies.text("id");
        replies.integer(self.id as i64);
        for (field, value) in [("mode", "standalone"), ("role", "master")] {
            replies.text(field);
            replies.text(value);
        }
        replies.text("modules");
        replies.array(1);
        replies.map(2);
        replies.text("name");
        replies.text("tollgate");
        replies.text("ver");
        replies.integer(1);
    }

    /// Writes the error for a client that is not authenticated.
    pub(super) fn refuse_unauthenticated(replies: &mut Replies) {
        replies.error(NOAUTH);
    }

    /// `RESET`: restores the state of a new connection.
    pub(super) fn reset(&mut self, tokens: Option<&Tokens>, replies: &mut Replies) {
        if self.reply_mode == ReplyMode::Off {
            replies.unmute();
        }
        let id = self.id;
        *self = RespSession { id, ..RespSession::new(self.peer, tokens) };
        replies.version = RespVersion::Resp2;
        replies.simple("RESET");
    }

    /// Returns true between `MULTI` and `EXEC` or `DISCARD`.
    #[inline]
    pub(super) fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// `MULTI`, `EXEC` and `DISCARD`. Redis runs the commands between them atomically; here they would be charged one by
    /// one although the client sees the transaction fail. So all of them are refused, like a transaction with
    /// invalid commands.
    pub(super) fn transaction_command(&mut self, command: RespCommand, replies: &mut Replies) {
        let refused = self.transaction;
        match (command, refused) {
            (RespCommand::Multi, None) => {
                self.transaction = Some(0);
                replies.ok();
            }
            (RespCommand::Multi, Some(_)) => replies.error("ERR MULTI calls can not be nested"),
            (RespCommand::Exec, None) => replies.error("ERR EXEC without MULTI"),
            (RespCommand::Exec, Some(0)) => replies.array(0),
            (RespCommand::Exec, Some(_)) => {
                replies.error("EXECABORT Transaction discarded because of previous errors.");
            }
            (_, None) => replies.error("ERR DISCARD without MULTI"),
            (_, Some(_)) => replies.ok(),
        }
        if command != RespCommand::Multi {
            self.transaction = None;
        }
    }

    /// Refuses a command inside a transaction.
    pub(super) fn refuse_in_transaction(&mut self, replies: &mut Replies) {
        self.transaction = self.transaction.map(|refused| refused.saturating_add(1));
        replies.error(NO_TRANSACTIONS);
    }

    /// `CLIENT …`.
    pub(super) fn client(&mut self, args: RespArgs<'_>, replies: &mut Replies) {
        let sub = args.get(1).unwrap_or_default();
        let name = sub.to_ascii_lowercase();
        let takes = match &name[..] {
            b"help" => return help("CLIENT", &CLIENT_HELP, replies),
            b"id" | b"getname" | b"info" => 2..=2,
            b"setname" | b"no-evict" | b"no-touch" | b"reply" => 3..=3,
            b"setinfo" => 4..=4,
            b"list" => 2..=usize::MAX,
            _ => return unknown_subcommand(sub, "CLIENT", replies),
        };
        if !takes.contains(&args.len()) {
            return wrong_arg_count(&format!("client|{}", TruncatedText(&name)), replies);
        }
        let value = args.get(2).unwrap_or_default();
        match &name[..] {
            b"id" => replies.integer(self.id as i64),
            b"getname" if self.name.is_empty() => replies.null(),
            b"getname" => replies.bulk(&self.name),
            b"setname" if is_name(value) => {
                self.name = value.to_vec();
                replies.ok();
            }
            b"setname" => replies.error(BAD_NAME),
            b"setinfo" => self.set_info(value, args.get(3).unwrap_or_default(), replies),
            // Nothing to evict or touch here.
            b"no-evict" | b"no-touch" => on_or_off(value, replies),
            b"reply" => self.set_reply_mode(value, replies),
            // Only the operator may see the other connections.
            _ => replies.verbatim(&self.info(replies.version)),
        }
    }

    /// Begins a command: mutes its reply if the client does not want one.
    pub(super) fn begin_reply(&mut self, replies: &mut Replies) {
        if self.reply_mode != ReplyMode::On {
            replies.mute();
        }
        self.end_reply_skip();
    }

    /// Ends `SKIP`, which an empty line uses up too, as in Redis.
    pub(super) fn end_reply_skip(&mut self) {
        if self.reply_mode == ReplyMode::Skip {
            self.reply_mode = ReplyMode::On;
        }
    }

    /// `CLIENT REPLY …`: only `ON` gets a reply.
    fn set_reply_mode(&mut self, value: &[u8], replies: &mut Replies) {
        match &value.to_ascii_lowercase()[..] {
            b"on" => {
                self.reply_mode = ReplyMode::On;
                replies.unmute();
                replies.ok();
            }
            b"off" => self.reply_mode = ReplyMode::Off,
            b"skip" if self.reply_mode == ReplyMode::Off => {}
            b"skip" => self.reply_mode = ReplyMode::Skip,
            _ => replies.error("ERR syntax error"),
        }
    }

    fn set_info(&mut self, field: &[u8], value: &[u8], replies: &mut Replies) {
        let place = match &field.to_ascii_lowercase()[..] {
            b"lib-name" => &mut self.library,
            b"lib-ver" => &mut self.library_version,
            _ => {
                let field = TruncatedText(field);
                return replies.error(format_args!("ERR Unrecognized option '{field}'"));
            }
        };
        if !is_name(value) {
            let field = String::from_utf8_lossy(field).to_lowercase();
            let text = "cannot contain spaces, newlines or special characters";
            return replies.error(format_args!("ERR {field} {text}, or be longer than 256 bytes."));
        }
        *place = value.to_vec();
        replies.ok();
    }

    /// The line of this connection, in the format of `CLIENT LIST`.
    fn info(&self, dialect: RespVersion) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "id={} addr={} name={} db=0 cmd=client user=default resp={} lib-name={} lib-ver={}\n",
            self.id,
            self.peer,
            text(&self.name),
            proto(dialect),
            text(&self.library),
            text(&self.library_version),
        )
    }
}

fn proto(dialect: RespVersion) -> i64 {
    match dialect {
        RespVersion::Resp2 => 2,
        RespVersion::Resp3 => 3,
    }
}

/// Returns true if this is a valid client name.
fn is_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

fn on_or_off(value: &[u8], replies: &mut Replies) {
    match value.eq_ignore_ascii_case(b"on") || value.eq_ignore_ascii_case(b"off") {
        true => replies.ok(),
        false => replies.error("ERR syntax error"),
    }
}

/// Parses an integer as Redis does: no plus sign, no leading zeros.
fn integer(text: &[u8]) -> Option<i64> {
    let value: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (value.to_string().as_bytes() == text).then_some(value)
}

/// `SELECT index`: database 0 is the only one.
pub(super) fn select(index: &[u8], replies: &mut Replies) {
    match integer(index) {
        Some(0) => replies.ok(),
        Some(_) => replies.error("ERR DB index is out of range"),
        None => replies.error("ERR value is not an integer or out of range"),
    }
}

/// `CONFIG GET …`: always an empty map.
pub(super) fn config(args: RespArgs<'_>, replies: &mut Replies) {
    let sub = args.get(1).unwrap_or_default();
    match &sub.to_ascii_lowercase()[..] {
        b"get" if args.len() > 2 => replies.map(0),
        b"get" => wrong_arg_count("config|get", replies),
        b"help" => help("CONFIG", &["GET pattern ...: an empty map"], replies),
        _ => unknown_subcommand(sub, "CONFIG", replies),
    }
}

/// `INFO [section …]`: the fields that clients look for.
pub(super) fn info(args: RespArgs<'_>, replies: &mut Replies) {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let all = args.len() == 1;
    let wanted = |section: &str| {
        let names = |name: &[u8]| {
            let groups = [section, "all", "default", "everything"];
            groups.iter().any(|group| name.eq_ignore_ascii_case(group.as_bytes()))
        };
        all || args.from(1).any(names)
    };
    let process = std::process::id();
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\
                 tollgate_version:{VERSION}\r\nprocess_id:{process}\r\n"
            ),
        ),
        // Clients wait while the server reports that it is loading.
        ("Persistence", "loading:0\r\n".into()),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".into()),
        ("Modules", "module:name=tollgate,ver=1\r\n".into()),
        ("Cluster", "cluster_enabled:0\r\n".into()),
    ];
    let chosen = sections.into_iter().filter(|(section, _)| wanted(section));
    let texts: Vec<_> = chosen.map(|(section, lines)| format!("# {section}\r\n{lines}")).collect();
    replies.verbatim(&texts.join("\r\n"));
}
