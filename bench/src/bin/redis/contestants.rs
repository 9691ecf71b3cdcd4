//! Who is asked, and for what.

use std::fmt::Write;

use crate::naive::Naive;

/// A limit that is never reached: what is measured is the way to an answer.
pub(crate) const ROOM: Quota = Quota { capacity: 1_000_000_000, per_s: 1_000_000_000 };

/// A bucket, the same for everybody who is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) capacity: u64,
    pub(crate) per_s: u64,
}

/// Somebody who decides.
pub(crate) enum Contestant {
    Naive(Naive, Quota),
}

impl Contestant {
    /// Whether this one caller may go on; an error if nobody can say.
    pub(crate) async fn ask(&self, key: u64) -> Result<bool, String> {
        let mut name = String::with_capacity(16);
        write!(name, "user:{key:07}").expect("writing to a String cannot fail");
        match self {
            Contestant::Naive(naive, quota) => naive.take(&name, quota.capacity, quota.per_s).await,
        }
    }

    /// Whether answers may come without asking Redis.
    pub(crate) fn may_answer_at_once(&self) -> bool {
        match self {
            Contestant::Naive(..) => false,
        }
    }
}
