//! `Described`: the answer to a request of descriptors, and `Status`, what it says of each.

use std::time::Duration;

use tollgate::{DecidedBy, Wait};

use super::Unit;
use crate::answer::Answer;
use crate::plan::Standing;

/// The answer to a request of descriptors.
#[derive(Debug)]
pub struct Described {
    answer: Answer,
    /// One for each descriptor. Bound: [`DESCRIPTORS_MAX`](super::DESCRIPTORS_MAX).
    statuses: Vec<Stated>,
}

/// A status on its way, without what belongs to the rules.
#[derive(Clone, Debug, Default)]
struct Stated {}

/// What is said of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status<'a> {
    /// Whether its limit has no room. The request may pass all the same: see [`Described::allowed`].
    pub over: bool,
    /// The limit that decided: of those without room the one with the longest wait, else the one with
    /// the least left. `None`: no limit applies, or it is without limit.
    pub limit: Option<CurrentLimit<'a>>,
    /// Units still takeable of that limit; 0 without one; as many as fit into 32 bits if it is
    /// unlimited.
    pub remaining: u64,
    /// Until that limit is as good as fresh. In imported files the end of the window.
    pub reset_after: Wait,
    /// Zero unless over.
    pub retry_after: Wait,
    /// Whether that limit refuses. `None` without one.
    pub standing: Option<Standing>,
    /// A file says that there is no limit for this one.
    pub unlimited: bool,
}

/// A limit as clients are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentLimit<'a> {
    /// The rule's name; of imported files the `name` that stands beside the limit, if one does.
    pub name: Option<&'a str>,
    /// How much.
    pub units: u64,
    /// In which time.
    pub period: Duration,
    /// The unit that is exactly so long, if there is one.
    pub unit: Option<Unit>,
}

impl Described {
    pub(crate) fn stand_in(answer: Answer, descriptors: usize) -> Described {
        Described { answer, statuses: vec![Stated::default(); descriptors] }
    }

    /// Whether the request may go on.
    pub fn allowed(&self) -> bool {
        self.answer.allowed()
    }

    /// One for each descriptor, in order.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = Status<'_>> {
        self.statuses.iter().map(|_| Status {
            over: false,
            limit: None,
            remaining: 0,
            reset_after: Wait::ZERO,
            retry_after: Wait::ZERO,
            standing: None,
            unlimited: false,
        })
    }

    /// Zero when allowed; otherwise the wait after which the same request passes.
    pub fn retry_after(&self) -> Wait {
        self.answer.retry_after()
    }

    /// Who decided.
    pub fn decided_by(&self) -> DecidedBy {
        self.answer.decided_by()
    }

    /// The decision as a whole: why it is refused, what headers and bodies say, by which rules.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }
}
