//! What is said on a connection: commands that have arrived are understood and obeyed, in order, and
//! their replies wait to be sent. How bytes come and go is `connection.rs`.

use std::net::SocketAddr;
use std::sync::Arc;

use super::RespListener;
use super::commands::RespCommand;
use super::counters::RespErrorKind;
use super::input::InputBuffer;
use super::replies::Replies;
use super::reply_allowance::{Allowance, OWN_BYTES};
use super::request::{CommandParser, ParserStep};
use super::rule_check_batch::RuleCheckBatch;
use super::session::{ReplyMode, RespSession};
use super::throttle::ThrottleCommand;
use super::throttle_batch::{BatchAddResult, ThrottleBatch};
use crate::listeners::watchdog::ConnectionActivity;

/// The most commands that are obeyed before others on the same worker get their turn.
const ROUND_COMMANDS_MAX: usize = 1_024;

pub(super) struct CommandLoop<'d> {
    pub(super) listener: &'d RespListener,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) input: InputBuffer,
    pub(super) parser: CommandParser,
    pub(super) replies: Replies,
    /// How much may wait in `replies`.
    pub(super) allowance: Allowance,
    pub(super) session: RespSession,
    /// What waits to be decided together: calls of `CL.THROTTLE`, or questions to the rules, and never
    /// both, so that replies stay in order.
    pub(super) throttle_batch: ThrottleBatch,
    rule_checks: RuleCheckBatch,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundResult {
    /// Everything that has arrived is obeyed.
    Done,
    /// There is more to obey.
    MoreInput,
    /// There is more, but as many replies wait as may.
    RepliesFull,
    /// The client is told no more.
    Close,
}

impl<'d> CommandLoop<'d> {
    pub(super) fn new(
        listener: &'d RespListener,
        peer: SocketAddr,
        pulse: Arc<ConnectionActivity>,
    ) -> Self {
        CommandLoop {
            listener,
            activity: pulse,
            input: InputBuffer::default(),
            parser: CommandParser::default(),
            replies: Replies::default(),
            allowance: Allowance::new(&listener.reply_allowance),
            session: RespSession::new(peer, listener.tokens.as_deref()),
            throttle_batch: ThrottleBatch::default(),
            rule_checks: RuleCheckBatch::default(),
        }
    }

    /// Obeys what has arrived, as far as it goes.
    pub(super) async fn run_commands(&mut self) -> RoundResult {
        let mut commands = 0;
        let round = loop {
            if self.input.unread().is_empty() {
                break Ok(RoundResult::Done);
            }
            if commands == ROUND_COMMANDS_MAX {
                break Ok(RoundResult::MoreInput);
            }
            if !self.allowance.try_cover(self.replies.buffered_bytes()) {
                break Ok(RoundResult::RepliesFull);
            }
            match self.parser.next(self.input.unread(), !self.session.admitted) {
                Ok(ParserStep::NeedMore) => break Ok(RoundResult::Done),
                Ok(ParserStep::Skip(length)) => {
                    self.input.consume(length);
                    self.session.end_reply_skip();
                }
                Ok(ParserStep::Command(length)) => {
                    if commands == 0 {
                        self.activity.request_started(false);
                    }
                    commands += 1;
                    if !self.try_batch() {
                        self.decide_batches().await;
                        self.run_command().await;
                    }
                    self.input.consume(length);
                    if self.session.is_leaving {
                        break Ok(RoundResult::Close);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.decide_batches().await;
        if commands > 0 {
            self.activity.request_ended();
            self.expect_input_soon();
        } else if self.is_idle() {
            self.reset_idle_timer();
        }
        round.unwrap_or_else(|error| {
            self.listener.counters.count_error(RespErrorKind::Protocol);
            if self.session.reply_mode == ReplyMode::On {
                self.replies.error(format_args!("ERR {error}"));
            }
            RoundResult::Close
        })
    }

    /// Puts a command to those that are decided together, if it is of their kind.
    #[inline]
    fn try_batch(&mut self) -> bool {
        let args = self.parser.args(self.input.unread());
        let name = args.get(0).unwrap_or_default();
        let alone = self.parser.was_inline()
            || self.session.reply_mode != ReplyMode::On
            || self.session.is_in_transaction();
        if !self.session.admitted || alone {
            return false;
        }
        if !name.eq_ignore_ascii_case(b"cl.throttle") {
            return self.try_batch_rule_check();
        }
        if !self.rule_checks.is_empty() {
            return false;
        }
        let Ok(call) = ThrottleCommand::read(args) else { return false };
        let ((begin, end), (_, offset)) = (args.range(1), self.input.bytes_and_offset());
        let key = (begin + offset as u32, end + offset as u32);
        matches!(self.throttle_batch.add(self.listener, &call, key), Ok(BatchAddResult::Queued))
    }

    /// Where the store answers later, the rules are asked several questions at once.
    #[inline(never)]
    fn try_batch_rule_check(&mut self) -> bool {
        let (args, (_, offset)) =
            (self.parser.args(self.input.unread()), self.input.bytes_and_offset());
        let peek = match RespCommand::from_name(args.get(0).unwrap_or_default()) {
            Some(RespCommand::Check) => false,
            Some(RespCommand::Peek) => true,
            _ => return false,
        };
        let at_once = self.listener.gatekeeper.answers_at_once();
        if at_once || !self.throttle_batch.is_empty() || self.rule_checks.is_full() {
            return false;
        }
        self.rule_checks.add(args, offset, peek);
        let command = if peek { RespCommand::Peek } else { RespCommand::Check };
        self.listener.counters.count_commands(Some(command), 1);
        true
    }

    /// Decides those that were put together.
    #[inline]
    async fn decide_batches(&mut self) {
        let (bytes, _) = self.input.bytes_and_offset();
        if !self.throttle_batch.is_empty() {
            self.throttle_batch.decide(self.listener, bytes, &mut self.replies).await;
        }
        if !self.rule_checks.is_empty() {
            let asking = self.rule_checks.decide(self.listener, bytes, &mut self.replies);
            // In a box: it is large, and a connection that does not ask need not carry it.
            Box::pin(asking).await;
        }
    }

    /// Something was done: patience begins anew.
    pub(super) fn reset_idle_timer(&self) {
        self.activity.request_started(false);
        self.activity.request_ended();
        self.expect_input_soon();
    }

    /// Whether what has arrived was nothing, such as an empty line, and nobody waits for more.
    fn is_idle(&self) -> bool {
        let nothing = self.input.unread().is_empty() && self.replies.unsent().is_empty();
        nothing && self.session.admitted
    }

    /// Half a command, and a stranger's silence, are waited for less patiently.
    fn expect_input_soon(&self) {
        if !self.session.admitted || !self.input.unread().is_empty() {
            self.activity.bytes_received();
        }
    }

    /// Whether it holds more memory than a connection that is idle should.
    pub(super) fn is_large(&self) -> bool {
        self.input.is_large() || self.replies.capacity() > OWN_BYTES / 16
    }

    /// Gives back the memory that nothing is in.
    pub(super) fn shrink(&mut self) {
        if self.replies.unsent().is_empty() {
            self.replies.shrink();
        }
        if self.input.unread().is_empty() {
            self.input.shrink();
            self.parser.shrink();
        }
    }
}
