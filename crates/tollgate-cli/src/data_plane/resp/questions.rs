//! Questions to the rules that arrive together, where the store answers later: all are asked before the
//! first answer is waited for. A store in this process answers at once, and has no need of it.

use super::RespListener;
use super::batch::{BATCH_MAX, all};
use super::figures::Trouble;
use super::reply::Replies;
use super::request::Args;
use super::rules::{self, Asked};

/// Questions that wait to be asked.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// Bound: [`BATCH_MAX`].
    waiting: Vec<Question>,
}

/// One question: where its arguments are, and whether it only looks.
#[derive(Debug)]
struct Question {
    args: Vec<(u32, u32)>,
    peek: bool,
}

impl Questions {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() == BATCH_MAX
    }

    /// Adds a question, whose command begins so far behind the first byte.
    pub(super) fn add(&mut self, args: Args<'_>, offset: usize, peek: bool) {
        let offset = offset as u32;
        let args = args.places().map(|(begin, end)| (begin + offset, end + offset)).collect();
        self.waiting.push(Question { args, peek });
    }

    /// Asks all of them and writes the replies, in order. `bytes` holds their arguments.
    pub(super) async fn decide(
        &mut self,
        listener: &RespListener,
        bytes: &[u8],
        replies: &mut Replies,
    ) {
        let now = listener.gatekeeper.now();
        let all_of = self
            .waiting
            .iter()
            .map(|question| (Asked::read(Args::new(bytes, &question.args)), question.peek));
        let read: Vec<_> = all_of.collect();
        let answers = all(read
            .iter()
            .map(|(asked, peek)| {
                Box::pin(async move {
                    let asked = asked.as_ref().ok()?;
                    Some(asked.decide(listener, (*peek, now)).await)
                })
            })
            .collect());
        let answers = answers.await;
        for ((asked, _), answer) in read.iter().zip(&answers) {
            match (asked, answer) {
                (_, Some(answer)) => rules::reply(listener, answer, replies),
                (Err(error), _) => {
                    listener.figures.trouble(Trouble::Command);
                    replies.error(error);
                }
                (Ok(_), None) => unreachable!("what was read was asked"),
            }
        }
        drop(read);
        self.waiting.clear();
    }
}
