//! Runs the commands that have arrived on a connection, in order, and queues their replies. `connection.rs` reads and
//! writes the bytes.

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
use super::throttle_batch::ThrottleBatch;
use crate::listeners::watchdog::ConnectionActivity;

/// Maximum number of commands that run before other connections of the same worker get their turn.
const ROUND_COMMANDS_MAX: usize = 1_024;

pub(super) struct CommandLoop<'d> {
    pub(super) listener: &'d RespListener,
    pub(super) activity: Arc<ConnectionActivity>,
    pub(super) input: InputBuffer,
    pub(super) parser: CommandParser,
    pub(super) replies: Replies,
    /// Bound of `replies`.
    pub(super) allowance: Allowance,
    pub(super) session: RespSession,
    /// Calls of `CL.THROTTLE` that are decided in one batch. Empty while `rule_checks` is not, so that replies stay in
    /// order.
    pub(super) throttle_batch: ThrottleBatch,
    /// Calls of `TG.CHECK` and `TG.PEEK` that are decided in one batch.
    rule_checks: RuleCheckBatch,
}

/// End of a round of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundResult {
    /// All complete commands that have arrived are done.
    Done,
    /// More commands have arrived.
    MoreInput,
    /// More commands have arrived, but the unsent replies have reached their bound.
    RepliesFull,
    /// The connection closes after the queued replies.
    Close,
}

impl<'d> CommandLoop<'d> {
    pub(super) fn new(
        listener: &'d RespListener,
        peer: SocketAddr,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        CommandLoop {
            listener,
            activity,
            input: InputBuffer::default(),
            parser: CommandParser::default(),
            replies: Replies::default(),
            allowance: Allowance::new(&listener.reply_allowance),
            session: RespSession::new(peer, listener.tokens.as_deref()),
            throttle_batch: ThrottleBatch::default(),
            rule_checks: RuleCheckBatch::default(),
        }
    }

    /// Runs the complete commands that have arrived.
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
            let repeated = self.queue_repeated_throttles(ROUND_COMMANDS_MAX - commands);
            if repeated > 0 {
                if commands == 0 {
                    self.activity.request_started(false);
                }
                commands += repeated;
                continue;
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
                    if self.is_batchable_throttle() {
                        if !self.rule_checks.is_empty() {
                            self.decide_batches().await;
                        }
                        let (input, parser) = (&self.input, &self.parser);
                        let (bytes, offset) = input.bytes_and_offset();
                        let (batch, args) = (&mut self.throttle_batch, parser.args(input.unread()));
                        // Not a function: most calls are only queued, and nothing is awaited for them.
                        match batch.queue(self.listener, args, offset) {
                            Ok(()) => batch.remember(&input.unread()[..length], args),
                            Err(unqueued) => {
                                unqueued.run(self.listener, batch, bytes, &mut self.replies).await;
                            }
                        }
                    } else if !self.try_batch_rule_check() {
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

    /// Returns true if the current command may wait in a batch: its reply is wanted, and its arguments stay in the input.
    #[inline]
    fn may_batch(&self) -> bool {
        self.session.admitted
            && !self.parser.was_inline()
            && self.session.reply_mode == ReplyMode::On
            && !self.session.is_in_transaction()
    }

    /// Queues the calls of `CL.THROTTLE` that differ from the last one only in their keys, at most this many. Returns
    /// their number.
    #[inline]
    fn queue_repeated_throttles(&mut self, commands_max: usize) -> usize {
        if self.parser.has_begun() || !self.rule_checks.is_empty() || !self.may_batch() {
            return 0;
        }
        let mut commands = 0;
        while commands < commands_max {
            let (bytes, offset) = self.input.bytes_and_offset();
            let Some(length) = self.throttle_batch.queue_repeated(bytes, offset) else { break };
            self.input.consume(length);
            commands += 1;
        }
        commands
    }

    #[inline]
    fn is_batchable_throttle(&self) -> bool {
        let name = self.parser.args(self.input.unread()).get(0).unwrap_or_default();
        name.eq_ignore_ascii_case(b"cl.throttle") && self.may_batch()
    }

    /// Adds a `TG.CHECK` or `TG.PEEK` to a batch, if the store has to be waited for: then their waits overlap.
    #[inline]
    fn try_batch_rule_check(&mut self) -> bool {
        !self.listener.gatekeeper.answers_at_once() && self.may_batch() && self.add_rule_check()
    }

    #[inline(never)]
    fn add_rule_check(&mut self) -> bool {
        let (args, (_, offset)) =
            (self.parser.args(self.input.unread()), self.input.bytes_and_offset());
        let command = RespCommand::from_name(args.get(0).unwrap_or_default());
        let Some(command @ (RespCommand::Check | RespCommand::Peek)) = command else {
            return false;
        };
        if !self.throttle_batch.is_empty() || self.rule_checks.is_full() {
            return false;
        }
        self.rule_checks.add(args, offset, command == RespCommand::Peek);
        self.listener.counters.count_commands(Some(command), 1);
        true
    }

    /// Decides the commands of the batches.
    #[inline]
    async fn decide_batches(&mut self) {
        let (bytes, _) = self.input.bytes_and_offset();
        if !self.throttle_batch.is_empty() {
            self.throttle_batch.decide(self.listener, bytes, &mut self.replies).await;
        }
        if !self.rule_checks.is_empty() {
            let asking = self.rule_checks.decide(self.listener, bytes, &mut self.replies);
            // Boxed: the future is large, and most connections never need it.
            Box::pin(asking).await;
        }
    }

    /// Restarts the idle timeout.
    pub(super) fn reset_idle_timer(&self) {
        self.activity.request_started(false);
        self.activity.request_ended();
        self.expect_input_soon();
    }

    /// Returns true if no input, such as half a command, and no reply is pending.
    fn is_idle(&self) -> bool {
        let nothing = self.input.unread().is_empty() && self.replies.unsent().is_empty();
        nothing && self.session.admitted
    }

    /// Switches to the shorter timeout if half a command has arrived or the client is not authenticated.
    fn expect_input_soon(&self) {
        if !self.session.admitted || !self.input.unread().is_empty() {
            self.activity.bytes_received();
        }
    }

    /// Returns true if it holds more memory than an idle connection should.
    pub(super) fn is_large(&self) -> bool {
        self.input.is_large() || self.replies.capacity() > OWN_BYTES / 16
    }

    /// Frees empty buffers.
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
