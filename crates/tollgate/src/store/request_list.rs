//! [`RequestList`]: many requests of several checks each, in one list.

use std::ops::Range;

use crate::check::Check;

/// Many requests of several checks each: all checks in a row, and the end of each request in it.
#[derive(Clone, Copy, Debug)]
pub struct RequestList<'a, 'c> {
    checks: &'a [Check<'c>],
    ends: &'a [usize],
}

impl<'a, 'c> RequestList<'a, 'c> {
    /// A list of requests. Each of `ends` is the number of checks up to the end of a request.
    ///
    /// # Panics
    ///
    /// If the ends go back, or the last one is not the number of checks.
    pub fn new(checks: &'a [Check<'c>], ends: &'a [usize]) -> RequestList<'a, 'c> {
        assert!(ends.is_sorted(), "the ends of requests do not go back");
        assert_eq!(ends.last().copied().unwrap_or(0), checks.len(), "every check has a request");
        RequestList { checks, ends }
    }

    /// The checks of all requests.
    pub fn checks(&self) -> &'a [Check<'c>] {
        self.checks
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there is no request.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The positions of the checks of each request, in order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + Clone + use<'a> {
        let mut start = 0;
        self.ends.iter().map(move |&end| std::mem::replace(&mut start, end)..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    #[test]
    fn requests_may_have_any_number_of_checks() {
        let limit: Limit = "1/s".parse().unwrap();
        let checks = [Check::new(&limit, "a"), Check::new(&limit, "b"), Check::new(&limit, "c")];
        let list = RequestList::new(&checks, &[2, 2, 3]);
        assert_eq!((list.len(), list.checks().len()), (3, 3));
        assert!(list.ranges().eq([0..2, 2..2, 2..3]));
        assert!(RequestList::new(&[], &[]).is_empty());
    }

    #[test]
    #[should_panic(expected = "every check has a request")]
    fn a_check_without_a_request_is_a_bug() {
        let limit: Limit = "1/s".parse().unwrap();
        let _ = RequestList::new(&[Check::new(&limit, "a")], &[]);
    }
}
