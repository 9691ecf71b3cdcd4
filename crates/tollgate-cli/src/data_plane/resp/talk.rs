//! What is said on a connection: commands that have arrived are understood and obeyed, in order, and
//! their replies wait to be sent. How bytes come and go is `connection.rs`.

use std::net::SocketAddr;
use std::sync::Arc;

use super::RespListener;
use super::allowance::{Allowance, OWN_BYTES};
use super::batch::{Added, Batch};
use super::commands::Command;
use super::figures::Trouble;
use super::input::Input;
use super::questions::Questions;
use super::reply::Replies;
use super::request::{Parser, Step};
use super::session::{Replying, Session};
use super::throttle::Throttle;
use crate::listeners::patrol::Pulse;

/// The most commands that are obeyed before others on the same worker get their turn.
const ROUND_COMMANDS_MAX: usize = 1_024;

pub(super) struct Talk<'d> {
    pub(super) listener: &'d RespListener,
    pub(super) pulse: Arc<Pulse>,
    pub(super) input: Input,
    pub(super) parser: Parser,
    pub(super) replies: Replies,
    /// How much may wait in `replies`.
    pub(super) allowance: Allowance,
    pub(super) session: Session,
    /// What waits to be decided together: calls of `CL.THROTTLE`, or questions to the rules, and never
    /// both, so that replies stay in order.
    pub(super) batch: Batch,
    questions: Questions,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Everything that has arrived is obeyed.
    Done,
    /// There is more to obey.
    More,
    /// There is more, but as many replies wait as may.
    Full,
    /// The client is told no more.
    Over,
}

impl<'d> Talk<'d> {
    pub(super) fn new(listener: &'d RespListener, peer: SocketAddr, pulse: Arc<Pulse>) -> Self {
        Talk {
            listener,
            pulse,
            input: Input::default(),
            parser: Parser::default(),
            replies: Replies::default(),
            allowance: Allowance::new(&listener.waiting),
            session: Session::new(peer, listener.tokens.as_deref()),
            batch: Batch::default(),
            questions: Questions::default(),
        }
    }

    /// Obeys what has arrived, as far as it goes.
    pub(super) async fn obey(&mut self) -> Round {
        let mut commands = 0;
        let round = loop {
            if self.input.unread().is_empty() {
                break Ok(Round::Done);
            }
            if commands == ROUND_COMMANDS_MAX {
                break Ok(Round::More);
            }
            if !self.allowance.covers(self.replies.held()) {
                break Ok(Round::Full);
            }
            match self.parser.next(self.input.unread(), !self.session.admitted) {
                Ok(Step::More) => break Ok(Round::Done),
                Ok(Step::Nothing(length)) => {
                    self.input.consume(length);
                    self.session.skip_nothing();
                }
                Ok(Step::Command(length)) => {
                    if commands == 0 {
                        self.pulse.begin(false);
                    }
                    commands += 1;
                    if !self.collect() {
                        self.decide().await;
                        self.command().await;
                    }
                    self.input.consume(length);
                    if self.session.leaves {
                        break Ok(Round::Over);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.decide().await;
        if commands > 0 {
            self.pulse.end();
            self.listen();
        } else if self.is_silent() {
            self.breathe();
        }
        round.unwrap_or_else(|error| {
            self.listener.figures.trouble(Trouble::Protocol);
            if self.session.replying == Replying::On {
                self.replies.error(format_args!("ERR {error}"));
            }
            Round::Over
        })
    }

    /// Puts a command to those that are decided together, if it is of their kind.
    #[inline]
    fn collect(&mut self) -> bool {
        let args = self.parser.args(self.input.unread());
        let name = args.get(0).unwrap_or_default();
        let alone = self.parser.was_line()
            || self.session.replying != Replying::On
            || self.session.is_in_transaction();
        if !self.session.admitted || alone {
            return false;
        }
        if !name.eq_ignore_ascii_case(b"cl.throttle") {
            return self.collect_question();
        }
        if !self.questions.is_empty() {
            return false;
        }
        let Ok(call) = Throttle::read(args) else { return false };
        let ((begin, end), (_, offset)) = (args.place(1), self.input.all());
        let key = (begin + offset as u32, end + offset as u32);
        matches!(self.batch.add(self.listener, &call, key), Ok(Added::Waits))
    }

    /// Where the store answers later, the rules are asked several questions at once.
    #[inline(never)]
    fn collect_question(&mut self) -> bool {
        let (args, (_, offset)) = (self.parser.args(self.input.unread()), self.input.all());
        let peek = match Command::of(args.get(0).unwrap_or_default()) {
            Some(Command::Check) => false,
            Some(Command::Peek) => true,
            _ => return false,
        };
        let at_once = self.listener.gatekeeper.limiter().store().shared().is_none();
        if at_once || !self.batch.is_empty() || self.questions.is_full() {
            return false;
        }
        self.questions.add(args, offset, peek);
        let command = if peek { Command::Peek } else { Command::Check };
        self.listener.figures.commands(Some(command), 1);
        true
    }

    /// Decides those that were put together.
    #[inline]
    async fn decide(&mut self) {
        let (bytes, _) = self.input.all();
        if !self.batch.is_empty() {
            self.batch.decide(self.listener, bytes, &mut self.replies).await;
        }
        if !self.questions.is_empty() {
            let asking = self.questions.decide(self.listener, bytes, &mut self.replies);
            // In a box: it is large, and a connection that does not ask need not carry it.
            Box::pin(asking).await;
        }
    }

    /// Something was done: patience begins anew.
    pub(super) fn breathe(&self) {
        self.pulse.begin(false);
        self.pulse.end();
        self.listen();
    }

    /// Whether what has arrived was nothing, such as an empty line, and nobody waits for more.
    fn is_silent(&self) -> bool {
        let nothing = self.input.unread().is_empty() && self.replies.waiting().is_empty();
        nothing && self.session.admitted
    }

    /// Half a command, and a stranger's silence, are waited for less patiently.
    fn listen(&self) {
        if !self.session.admitted || !self.input.unread().is_empty() {
            self.pulse.hear();
        }
    }

    /// Whether it holds more memory than a connection that is idle should.
    pub(super) fn is_large(&self) -> bool {
        self.input.is_large() || self.replies.capacity() > OWN_BYTES / 16
    }

    /// Gives back the memory that nothing is in.
    pub(super) fn shrink(&mut self) {
        if self.replies.waiting().is_empty() {
            self.replies.shrink();
        }
        if self.input.unread().is_empty() {
            self.input.shrink();
            self.parser.shrink();
        }
    }
}
