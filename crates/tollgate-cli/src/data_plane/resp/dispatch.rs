//! Runs one command: checks that the client may send it, and calls its implementation.

use tollgate_rules::expect_ready;

use super::RespListener;
use super::command_loop::CommandLoop;
use super::commands::{self, RespCommand, unknown_command, wrong_arg_count};
use super::counters::RespErrorKind;
use super::replies::Replies;
use super::request::RespArgs;
use super::session::{self, RespSession};
use super::tg_commands::{self, TgCheckCommand};
use super::throttle_batch::ThrottleBatch;

/// First words of lines in HTTP requests, which a web page can make a browser send to this port: the connection closes,
/// so that no line of the body runs as a command.
const BROWSER_WORDS: [&[u8]; 2] = [b"host:", b"post"];

impl CommandLoop<'_> {
    /// Runs the command that was parsed last, and queues its reply if the client wants one.
    pub(super) async fn run_command(&mut self) {
        self.session.begin_reply(&mut self.replies);
        self.execute().await;
        self.replies.discard_muted();
        if self.session.wrong_token_shown {
            self.listener.counters.count_error(RespErrorKind::Auth);
            let (peer, now) = (self.session.resp_peer().peer, self.listener.gatekeeper.now());
            self.listener.audit.warn_wrong_token(peer, now);
        }
    }

    async fn execute(&mut self) {
        let args = self.parser.args(self.input.unread());
        let (listener, replies, session) = (self.listener, &mut self.replies, &mut self.session);
        let name = args.get(0).unwrap_or_default();
        session.wrong_token_shown = false;
        let Some(command) = RespCommand::from_name(name) else {
            listener.counters.count_commands(None, 1);
            session.is_leaving = BROWSER_WORDS.iter().any(|word| name.eq_ignore_ascii_case(word));
            if session.is_in_transaction() && !session.is_leaving {
                listener.counters.count_error(RespErrorKind::Command);
                session.refuse_in_transaction(replies);
            } else if !session.is_leaving {
                listener.counters.count_error(RespErrorKind::Command);
                unknown_command(args, replies);
            }
            return;
        };
        if command != RespCommand::Throttle {
            listener.counters.count_commands(Some(command), 1);
        }
        if session.is_in_transaction() && !command.is_allowed_in_transaction() {
            if command == RespCommand::Throttle {
                listener.counters.count_commands(Some(command), 1);
            }
            listener.counters.count_error(RespErrorKind::Command);
            return session.refuse_in_transaction(replies);
        }
        if !command.accepts_arg_count(args.len()) {
            listener.counters.count_error(RespErrorKind::Command);
            return wrong_arg_count(command.info().name, replies);
        }
        if !session.admitted && !command.is_allowed_before_auth() {
            listener.counters.count_error(RespErrorKind::Auth);
            return RespSession::refuse_unauthenticated(replies);
        }
        let tokens = listener.tokens.as_deref();
        match command {
            RespCommand::Multi | RespCommand::Exec | RespCommand::Discard => {
                session.transaction_command(command, replies)
            }
            RespCommand::Throttle => {
                throttle_one(listener, &mut self.throttle_batch, args, replies).await
            }
            RespCommand::Check => check_rules(listener, args, false, replies).await,
            RespCommand::Peek => check_rules(listener, args, true, replies).await,
            RespCommand::ResetKey => {
                tg_commands::reset(listener, args, session.resp_peer(), replies).await
            }
            RespCommand::Ping => match (args.get(1), args.len()) {
                (None, _) => replies.simple("PONG"),
                (Some(text), 2) => replies.bulk(text),
                _ => wrong_arg_count("ping", replies),
            },
            RespCommand::Echo => replies.bulk(args.get(1).unwrap_or_default()),
            RespCommand::Hello => session.hello(args, tokens, replies),
            RespCommand::Auth => session.auth(args, tokens, replies),
            RespCommand::Client => session.client(args, replies),
            RespCommand::Select => session::select(args.get(1).unwrap_or_default(), replies),
            RespCommand::Commands => commands::command(args, replies),
            RespCommand::Info => session::info(args, replies),
            RespCommand::Config => session::config(args, replies),
            RespCommand::Quit => {
                session.is_leaving = true;
                replies.ok();
            }
            RespCommand::Reset => session.reset(tokens, replies),
            RespCommand::Cluster
            | RespCommand::ReadOnly
            | RespCommand::ReadWrite
            | RespCommand::Asking => {
                replies.error("ERR This instance has cluster support disabled");
            }
        }
    }
}

/// Runs a call of `CL.THROTTLE` that may not wait in a batch: it was sent inline, or its reply is muted.
async fn throttle_one(
    listener: &RespListener,
    batch: &mut ThrottleBatch,
    args: RespArgs<'_>,
    replies: &mut Replies,
) {
    match batch.queue(listener, args, 0) {
        Ok(()) => batch.decide(listener, args.bytes(), replies).await,
        Err(unqueued) => unqueued.run(listener, batch, args.bytes(), replies).await,
    }
}

async fn check_rules(
    listener: &RespListener,
    args: RespArgs<'_>,
    peek: bool,
    replies: &mut Replies,
) {
    match TgCheckCommand::read(args) {
        Ok(asked) => {
            let how = (peek, listener.gatekeeper.now());
            let answer = match listener.gatekeeper.answers_at_once() {
                true => expect_ready(asked.decide(listener, how)),
                // Boxed: the future is large, and most connections never need it.
                false => Box::pin(asked.decide(listener, how)).await,
            };
            tg_commands::write_reply(listener, &answer, replies);
        }
        Err(error) => {
            listener.counters.count_error(RespErrorKind::Command);
            replies.error(error);
        }
    }
}
