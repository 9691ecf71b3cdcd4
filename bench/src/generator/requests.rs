//! Requests for many keys, encoded before the clock starts.
//!
//! 65,536 keys are drawn from 100,000, which makes about 48,000 different ones: more than the
//! processor's inner caches hold, few enough that a server has seen them all within a second.

use crate::random::BenchRandom;

const DRAWS: usize = 1 << 16;
const KEYS: u64 = 100_000;

/// Requests in contiguous memory, sent in this order, over and over.
#[derive(Debug)]
pub struct EncodedRequests {
    bytes: Vec<u8>,
    /// The end of each request.
    ends: Vec<usize>,
    /// Number of decisions in one request.
    pub decisions: usize,
}

impl EncodedRequests {
    /// Generates requests with `decisions` decisions each. `request` encodes one from the numbers of its callers, which
    /// are below 100,000.
    pub fn generate<B: AsRef<[u8]>>(
        decisions: usize,
        request: impl Fn(&[u64]) -> B,
    ) -> EncodedRequests {
        let mut random = BenchRandom::new(1);
        let callers: Vec<u64> = (0..DRAWS).map(|_| random.below(KEYS)).collect();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for callers in callers.chunks_exact(decisions) {
            bytes.extend_from_slice(request(callers).as_ref());
            ends.push(bytes.len());
        }
        EncodedRequests { bytes, ends, decisions }
    }

    /// Number of requests before the list starts again.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no requests.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The request at `index`, below `len`.
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

/// An endless cursor over requests, with a start of its own.
#[derive(Debug)]
pub struct RequestCursor<'a> {
    requests: &'a EncodedRequests,
    next: usize,
}

impl<'a> RequestCursor<'a> {
    /// The cursor of the connection at `index`. Cursors start far apart, so that connections do not use the same
    /// keys shortly after each other.
    pub fn new(requests: &'a EncodedRequests, index: usize) -> RequestCursor<'a> {
        const APART: usize = 1_237;
        RequestCursor { requests, next: index * APART % requests.len() }
    }

    /// The next request.
    pub fn next_request(&mut self) -> &'a [u8] {
        let request = self.requests.get(self.next);
        self.next = if self.next + 1 == self.requests.len() { 0 } else { self.next + 1 };
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn about_48_000_callers_ask() {
        let requests = EncodedRequests::generate(1, |callers| format!("{:05}", callers[0]));
        let different: HashSet<&[u8]> = (0..requests.len()).map(|it| requests.get(it)).collect();
        assert_eq!(requests.len(), 65_536);
        assert!((47_500..48_500).contains(&different.len()), "{}", different.len());
    }

    #[test]
    fn a_cursor_comes_back_to_where_it_began() {
        let requests = EncodedRequests::generate(16, |callers| format!("{:05}", callers[0]));
        assert_eq!(requests.len(), 4_096);
        let mut cursor = RequestCursor::new(&requests, 5);
        let first = cursor.next_request();
        (1..requests.len()).for_each(|_| assert!(!cursor.next_request().is_empty()));
        assert_eq!(cursor.next_request().as_ptr(), first.as_ptr());
    }
}
