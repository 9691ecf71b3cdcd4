//! Batches of `TG.CHECK` and `TG.PEEK` for stores that have to be waited for: all commands are sent to the store before
//! the first answer is awaited. A store that answers at once does not need it.

use tollgate::store::join::join_all;

use super::RespListener;
use super::counters::RespErrorKind;
use super::replies::Replies;
use super::request::RespArgs;
use super::tg_commands::{self, TgCheckCommand};
use super::throttle_batch::BATCH_MAX;

/// Commands that wait to be decided.
#[derive(Debug, Default)]
pub(super) struct RuleCheckBatch {
    /// Bound: [`BATCH_MAX`].
    queued: Vec<QueuedRuleCheck>,
}

/// One command: the ranges of its arguments, and true for `TG.PEEK`.
#[derive(Debug)]
struct QueuedRuleCheck {
    arg_ranges: Vec<(u32, u32)>,
    peek: bool,
}

impl RuleCheckBatch {
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.queued.len() == BATCH_MAX
    }

    /// Adds a command that begins at this offset of the input.
    pub(super) fn add(&mut self, args: RespArgs<'_>, offset: usize, peek: bool) {
        let offset = offset as u32;
        let args = args.ranges().map(|(begin, end)| (begin + offset, end + offset)).collect();
        self.queued.push(QueuedRuleCheck { arg_ranges: args, peek });
    }

    /// Decides all commands and writes the replies, in order. `bytes` holds their arguments.
    pub(super) async fn decide(
        &mut self,
        listener: &RespListener,
        bytes: &[u8],
        replies: &mut Replies,
    ) {
        let now = listener.gatekeeper.now();
        let all_of = self.queued.iter().map(|question| {
            (TgCheckCommand::read(RespArgs::new(bytes, &question.arg_ranges)), question.peek)
        });
        let read: Vec<_> = all_of.collect();
        let answers = join_all(read.iter().map(|(asked, peek)| async move {
            let asked = asked.as_ref().ok()?;
            Some(asked.decide(listener, (*peek, now)).await)
        }));
        let answers = answers.await;
        for ((asked, _), answer) in read.iter().zip(&answers) {
            match (asked, answer) {
                (_, Some(answer)) => tg_commands::write_reply(listener, answer, replies),
                (Err(error), _) => {
                    listener.counters.count_error(RespErrorKind::Command);
                    replies.error(error);
                }
                (Ok(_), None) => unreachable!("every valid command was decided"),
            }
        }
        drop(read);
        self.queued.clear();
    }
}
