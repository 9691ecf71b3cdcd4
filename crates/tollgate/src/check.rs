//! `Check`: a request to one limit. It has the limit, the key, the cost and the act.

use crate::limit::Limit;

/// Identifies whose usage is counted, such as a client: any bytes, usually text. An empty key is
/// refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

impl<'a> Key<'a> {
    /// The bytes.
    #[inline]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns true if the key has no bytes.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> From<&'a str> for Key<'a> {
    #[inline]
    fn from(text: &'a str) -> Key<'a> {
        Key(text.as_bytes())
    }
}

impl<'a> From<&'a String> for Key<'a> {
    #[inline]
    fn from(text: &'a String) -> Key<'a> {
        Key(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Key<'a> {
        Key(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Key<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Key<'a> {
        Key(bytes)
    }
}

impl<'a> From<&'a KeyBuf> for Key<'a> {
    #[inline]
    fn from(key: &'a KeyBuf) -> Key<'a> {
        Key(&key.0)
    }
}

/// A key made of several named facts, such as user and path.
///
/// Parts carry their lengths, so no choice of values makes two different lists equal:
/// ("a_b", "c") is not ("a", "b_c"), and user "192.0.2.1" is not the address 192.0.2.1. Nor is
/// such a key ever equal to a plain text key.
///
/// ```
/// use tollgate::KeyBuf;
///
/// let one = KeyBuf::new().with("user", "42").with("path", "/search");
/// let other = KeyBuf::new().with("user", "4").with("path", "2/search");
/// assert_ne!(one, other);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyBuf(Vec<u8>);

impl KeyBuf {
    /// First byte of every such key; no text in UTF-8 begins with it.
    const MARK: u8 = 0xff;

    /// A key without parts; empty until the first is added.
    pub const fn new() -> KeyBuf {
        KeyBuf(Vec::new())
    }

    /// A key without parts, with room for this many bytes.
    pub fn with_capacity(bytes: usize) -> KeyBuf {
        KeyBuf(Vec::with_capacity(bytes))
    }

    /// Adds a named fact.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> KeyBuf {
        self.add(name, value);
        self
    }

    /// Adds a named fact.
    pub fn add(&mut self, name: &str, value: &str) {
        if self.0.is_empty() {
            self.0.push(KeyBuf::MARK);
        }
        for part in [name, value] {
            self.0.extend_from_slice(&(part.len() as u64).to_le_bytes());
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// Adds all parts of another key.
    pub fn append(&mut self, other: &KeyBuf) {
        let parts = if self.0.is_empty() { &other.0[..] } else { other.0.get(1..).unwrap_or(&[]) };
        self.0.extend_from_slice(parts);
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The facts of the key, in order.
    ///
    /// ```
    /// use tollgate::KeyBuf;
    ///
    /// let key = KeyBuf::new().with("user", "42").with("path", "/search");
    /// assert_eq!(key.parts().collect::<Vec<_>>(), [("user", "42"), ("path", "/search")]);
    /// ```
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        let mut text = move || {
            let (length, after) = rest.split_first_chunk::<8>()?;
            let (text, after) = after.split_at_checked(u64::from_le_bytes(*length) as usize)?;
            rest = after;
            std::str::from_utf8(text).ok()
        };
        std::iter::from_fn(move || Some((text()?, text()?)))
    }

    /// Empties it and keeps its memory, for the next request.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Removes everything that was added since the key had this many [bytes](KeyBuf::as_bytes).
    ///
    /// ```
    /// use tollgate::KeyBuf;
    ///
    /// let mut key = KeyBuf::new().with("user", "42");
    /// let mark = key.as_bytes().len();
    /// key.add("path", "/search");
    /// key.truncate(mark);
    /// assert_eq!(key, KeyBuf::new().with("user", "42"));
    /// ```
    pub fn truncate(&mut self, bytes: usize) {
        self.0.truncate(bytes);
    }

    /// Number of bytes for which memory is allocated.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl Default for KeyBuf {
    fn default() -> KeyBuf {
        KeyBuf::new()
    }
}

/// The action to take with the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Act {
    /// Charge it whole if it fits, else refuse.
    #[default]
    Take,
    /// Answer as a take would, but charge nothing.
    Peek,
    /// Charge it even if that makes debt: the cost of work that has already been done.
    Force,
    /// Charge as much of it as fits; refuse if nothing does.
    UpTo,
}

/// Treatment of a check by a shared store. A store within this process ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The answer while the store is unavailable.
    pub on_failure: OnFailure,
    /// Required agreement between instances.
    pub consistency: Consistency,
    /// Number of the named store, if there are several; 0 for the default store.
    pub store: u8,
}

/// The answer while a shared store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Decide locally, with this instance's share of the limit.
    #[default]
    Local,
    /// Admit.
    Open,
    /// Refuse.
    Closed,
}

/// Agreement between the instances on a shared store about one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// The store makes every decision, as if there were one instance.
    #[default]
    Strict,
    /// Busy keys borrow budget ahead. At most this part of the capacity, in millionths, is lent at
    /// a time: so much more or less may pass.
    Leased {
        /// The part, in millionths of the capacity.
        millionths: u32,
    },
    /// Each instance decides locally and reports its charges to the store at intervals.
    LocalSync {
        /// The interval in milliseconds.
        interval_ms: u32,
    },
}

/// One limit applied to one key.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) key: Key<'a>,
    pub(crate) cost: u64,
    pub(crate) act: Act,
    pub(crate) shadow: bool,
    pub(crate) count_denied: bool,
    /// Only ever set for a queue, because no other limit delays.
    pub(crate) at_once: bool,
    pub(crate) terms: Terms,
}

impl<'a> Check<'a> {
    /// A check that takes one unit.
    #[inline]
    pub fn new(limit: &'a Limit, key: impl Into<Key<'a>>) -> Check<'a> {
        Check {
            limit,
            key: key.into(),
            cost: 1,
            act: Act::Take,
            shadow: false,
            count_denied: false,
            at_once: false,
            terms: Terms::default(),
        }
    }

    /// Sets the cost in units; 0 is a peek.
    #[inline]
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Check<'a> {
        self.cost = cost;
        self
    }

    /// Sets the action to take with the cost.
    #[inline]
    #[must_use]
    pub fn act(mut self, act: Act) -> Check<'a> {
        self.act = act;
        self
    }

    /// Makes the limit a shadow: it is judged and charged with the others but never refuses, to
    /// show what it would do.
    #[must_use]
    pub fn shadow(mut self) -> Check<'a> {
        self.shadow = true;
        self
    }

    /// Charges refused requests, too: a client that keeps trying stays refused.
    #[must_use]
    pub fn count_denied(mut self) -> Check<'a> {
        self.count_denied = true;
        self
    }

    /// Refuses instead of delaying, for a caller that cannot wait. `retry_after` is then the wait
    /// until the queue is empty, after which the request is admitted without a delay, and nothing
    /// is charged. Limits that are no queue, and forced costs, are not affected.
    ///
    /// ```
    /// use tollgate::{Algorithm, Check, Limit, Limiter, Micros, Wait};
    ///
    /// let limiter = Limiter::with_capacity(1_000);
    /// let queue = Limit::per_second(10).burst(5).algorithm(Algorithm::LeakyBucket).queue().build()?;
    /// let now = limiter.at(Micros::from_secs(100));
    /// let check = Check::new(&queue, "user:42");
    /// assert!(now.decide(&[check.at_once()]).allowed());
    ///
    /// let refused = now.decide(&[check.at_once()]);
    /// assert_eq!(refused.retry_after(), Wait::from_micros(100_000));
    /// assert_eq!(now.decide(&[check]).delay(), Wait::from_micros(100_000));
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn at_once(mut self) -> Check<'a> {
        self.at_once = self.limit.is_queue();
        self
    }

    /// Sets the treatment by a shared store.
    #[inline]
    #[must_use]
    pub fn terms(mut self, terms: Terms) -> Check<'a> {
        self.terms = terms;
        self
    }

    /// The limit.
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The key.
    pub fn key(&self) -> Key<'a> {
        self.key
    }

    /// The cost in units.
    pub fn units(&self) -> u64 {
        self.cost
    }

    /// The action to take with the cost.
    pub fn requested_act(&self) -> Act {
        self.act
    }

    /// Returns true if the limit never refuses.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns true if refused requests are charged, too.
    pub fn counts_denied(&self) -> bool {
        self.count_denied
    }

    /// Returns true if a delay counts as a refusal.
    pub fn is_at_once(&self) -> bool {
        self.at_once
    }

    /// The treatment by a shared store.
    pub fn requested_terms(&self) -> Terms {
        self.terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_run_into_each_other() {
        let lists: [&[(&str, &str)]; 6] = [
            &[("a_b", "c")],
            &[("a", "b_c")],
            &[("user", "192.0.2.1")],
            &[("ip", "192.0.2.1")],
            &[("a", "b"), ("c", "d")],
            &[("a", "bcd")],
        ];
        let keys: std::collections::HashSet<KeyBuf> = lists
            .iter()
            .map(|parts| {
                parts.iter().fold(KeyBuf::new(), |key, (name, value)| key.with(name, value))
            })
            .collect();
        assert_eq!(keys.len(), lists.len());
        assert!(keys.iter().all(|key| std::str::from_utf8(Key::from(key).as_bytes()).is_err()));
        assert!(Key::from(&KeyBuf::new()).is_empty());

        let mut joined = KeyBuf::new();
        for part in [KeyBuf::new(), KeyBuf::new().with("a", "b"), KeyBuf::new().with("c", "d")] {
            joined.append(&part);
        }
        assert_eq!(joined, KeyBuf::new().with("a", "b").with("c", "d"));
    }
}
