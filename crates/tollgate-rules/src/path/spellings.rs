//! The spellings of a path: one for nearly every path, several where servers read it differently.

use std::borrow::Cow;

use super::reading::{DroppedSlashes, PathFeatures, PathReading, PathStart, READINGS, normal};
use super::{RequestTarget, plain_path};

/// The most spellings that a path has: two for each way to read it, because some servers take note of
/// slashes at the end and doubled ones, and others do not.
pub const SPELLINGS_MAX: usize = 2 * READINGS.len();

/// Some spellings of a path, by number: a bit for each.
pub(crate) type SpellingSet = u64;

/// The numbers of the spellings in a set, in order.
pub(crate) fn spelling_numbers(mut set: SpellingSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (number < SpellingSet::BITS).then_some(number as usize)
    })
}

const _: () = assert!(SPELLINGS_MAX <= SpellingSet::BITS as usize);

/// A path as some servers read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelling<'a> {
    text: Cow<'a, str>,
    slashes: DroppedSlashes,
}

impl Spelling<'_> {
    /// The text in normal escapes, without empty segments or a slash at the end. It has `.` and
    /// `..` in readings that do not resolve them.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The slashes that these servers see in the path beside those of the text.
    pub(crate) fn slashes(&self) -> DroppedSlashes {
        self.slashes
    }
}

/// All spellings of a path, each once. Bound: [`SPELLINGS_MAX`].
#[derive(Clone, Debug)]
pub struct Spellings<'a> {
    /// The normal form.
    first: Spelling<'a>,
    others: Vec<Spelling<'static>>,
}

impl<'a> Spellings<'a> {
    /// Reads a path as it was received.
    pub fn of(raw: &'a str) -> Spellings<'a> {
        match plain_path(raw) {
            Some(path) => Spellings::only(path),
            None => Spellings::of_target(&RequestTarget::of(raw)),
        }
    }

    /// A path that has its normal form.
    #[inline]
    fn only(path: &'a str) -> Spellings<'a> {
        let first = Spelling { text: Cow::Borrowed(path), slashes: DroppedSlashes::None };
        Spellings { first, others: Vec::new() }
    }

    #[cold]
    fn of_target(target: &RequestTarget<'a>) -> Spellings<'a> {
        if target.with_fragment.is_none()
            && let Some(path) = plain_path(target.path)
        {
            return Spellings::only(path);
        }
        let (text, slashes) = normal(target.path);
        let first = Spelling { text: text.clone().into(), slashes: DroppedSlashes::None };
        let mut all = Spellings { first, others: Vec::new() };
        all.add(text, slashes);
        let odd = PathFeatures::of(target.path).with_fragment(target.with_fragment.is_some());
        let mut tried = arrayvec::ArrayVec::<PathReading, { READINGS.len() }>::new();
        for reading in READINGS.iter().filter_map(|reading| odd.simplify(*reading)) {
            if tried.contains(&reading) {
                continue;
            }
            // The first reading is the normal form, whose spelling is already listed.
            if !tried.is_empty() {
                let path = match reading.start {
                    PathStart::WithFragment => target.with_fragment.unwrap_or(target.path),
                    PathStart::Plain | PathStart::AfterHost => target.path,
                };
                let (text, slashes) = reading.read(path);
                all.add(text, slashes);
            }
            tried.push(reading);
        }
        all
    }

    /// Adds what is not there yet: the text alone, and with its slashes.
    fn add(&mut self, text: String, slashes: DroppedSlashes) {
        let is_new = |one: &Spelling<'_>| !self.iter().any(|other| other == one);
        let plain = Spelling { text: text.into(), slashes: DroppedSlashes::None };
        let as_sent = Spelling { text: plain.text.clone(), slashes };
        let new = [is_new(&plain), slashes != DroppedSlashes::None && is_new(&as_sent)];
        self.others.extend(new[0].then_some(plain));
        self.others.extend(new[1].then_some(as_sent));
    }

    /// Each spelling, the normal form first.
    pub fn iter(&self) -> impl Iterator<Item = &Spelling<'_>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// A spelling by its number.
    pub(crate) fn get(&self, number: usize) -> Option<&Spelling<'_>> {
        match number {
            0 => Some(&self.first),
            other => self.others.get(other - 1),
        }
    }

    /// Number of spellings.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        1 + self.others.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each text once, with slashes and without.
    fn texts(raw: &str) -> Vec<String> {
        let mut texts: Vec<String> = Vec::new();
        for one in Spellings::of(raw).iter() {
            if !texts.iter().any(|text| text == one.text()) {
                texts.push(one.text().into());
            }
        }
        texts
    }

    #[test]
    fn what_servers_read_differently_has_all_their_spellings() {
        let cases: [(&str, &[&str]); 32] = [
            ("/api/login", &["/api/login"]),
            ("/api/login/", &["/api/login"]),
            ("/api//login", &["/api/login"]),
            ("/caf%c3%a9", &["/caf%C3%A9"]),
            ("/%6cogin", &["/login", "/%256cogin"]),
            ("/a/%2e%2E/b", &["/b", "/a/../b", "/a/%252e%252E/b"]),
            ("/api%2Flogin", &["/api%2Flogin", "/api/login"]),
            ("/api/login%2f", &["/api/login%2F", "/api/login"]),
            ("/api/x%2F..%2Flogin", &["/api/x%2F..%2Flogin", "/api/login", "/api/x/../login"]),
            ("/api/login;x=1", &["/api/login;x=1", "/api/login"]),
            ("/api/login%3Bx=1", &["/api/login;x=1", "/api/login%253Bx=1", "/api/login"]),
            ("/api\\login", &["/api%5Clogin", "/api/login"]),
            ("/login;%2Fx", &["/login;%2Fx", "/login;/x", "/login", "/login/x"]),
            ("/api/..;/login", &["/api/..;/login", "/login", "/api/../login"]),
            ("/search/shoes/../../y", &["/y", "/search/shoes/../../y"]),
            ("/a/./b", &["/a/b", "/a/./b"]),
            ("/a//../b", &["/b", "/a/../b", "/a/b"]),
            ("//host/login", &["/host/login", "/login"]),
            ("/\\host/login", &["/%5Chost/login", "/host/login", "/login"]),
            ("///host//login/../x", &["/host/x", "/host/login/../x", "/x", "/login/../x"]),
            ("//u@h/admin/../.", &["/u@h", "/u@h/admin/../.", "/", "/admin/../."]),
            ("/login#/../x", &["/login", "/login%23/../x"]),
            ("/login#x?y", &["/login", "/login%23x"]),
            ("/login?x#y", &["/login"]),
            ("http://host\\login", &["/%5Clogin", "/login"]),
            (
                "/a/b/../x%2F..%2Fy",
                &["/a/x%2F..%2Fy", "/a/b/../x%2F..%2Fy", "/a/y", "/a/b/../x/../y", "/a/x/../y"],
            ),
            ("/;/", &["/;", "/"]),
            // A proxy removes a segment that is `..` to the server behind it.
            (
                "/api/b/..%2Fy/../..%2Flogin",
                &[
                    "/api/b/..%2Flogin",
                    "/api/b/..%2Fy/../..%2Flogin",
                    "/login",
                    "/api/b/../y/../../login",
                    "/api/b/../login",
                    "/api/login",
                ],
            ),
            (
                "/login/b/..;/..;/../",
                &["/login/b/..;", "/login/b/..;/..;/..", "/", "/login/b/../../..", "/login"],
            ),
            (
                "/api/b/..;/..%3B%2F../login",
                &[
                    "/api/b/..;/..;%2F../login",
                    "/api/b/..;/..%253B%2F../login",
                    "/api/b/..;/login",
                    "/api/b/..;/..;/../login",
                    "/api/..;%2F../login",
                    "/api/login",
                    "/api/b/../..;%2F../login",
                    "/login",
                ],
            ),
            ("/login%3Bx%5Cy", &["/login;x%5Cy", "/login%253Bx%5Cy", "/login;x/y", "/login"]),
            (
                "/api/b/..\\y/../..\\login",
                &[
                    "/api/b/..%5Clogin",
                    "/api/b/..%5Cy/../..%5Clogin",
                    "/login",
                    "/api/b/../y/../../login",
                    "/api/login",
                ],
            ),
        ];
        for (raw, want) in cases {
            assert_eq!(texts(raw), want, "{raw}");
        }
    }

    #[test]
    fn slashes_that_go_are_remembered() {
        let cases = [
            ("/", DroppedSlashes::None),
            ("/a", DroppedSlashes::None),
            ("/a/", DroppedSlashes::Last),
            ("/a/.", DroppedSlashes::Last),
            ("/a/b/..", DroppedSlashes::Last),
            ("//", DroppedSlashes::Doubled),
            ("//a", DroppedSlashes::Doubled),
            ("/a//b", DroppedSlashes::Doubled),
            ("/a//", DroppedSlashes::Doubled),
            ("a", DroppedSlashes::None),
        ];
        for (raw, want) in cases {
            let slashes: Vec<DroppedSlashes> =
                Spellings::of(raw).iter().map(Spelling::slashes).collect();
            assert_eq!(slashes[0], DroppedSlashes::None, "{raw}");
            assert_eq!(slashes.into_iter().max(), Some(want), "{raw}");
        }
    }

    #[test]
    fn nobody_makes_more_spellings_than_there_are_readings() {
        let pieces = ["/", "//", "\\", "%2F", "%5C", ";", "%3B", "..", ".", "#", "a", "?"];
        let mut most = 0;
        // Every path of four of these, and longer ones made of two of them.
        for number in 0..pieces.len().pow(4) {
            let at = |place: u32| pieces[number / pieces.len().pow(place) % pieces.len()];
            let raw: String = (0..4).map(at).collect();
            for raw in [raw.clone(), format!("/x{raw}y{raw}/z")] {
                let spellings = Spellings::of(&raw);
                most = most.max(spellings.len());
                for (index, one) in spellings.iter().enumerate() {
                    assert!(one.text().starts_with('/') && !one.text().contains("//"), "{raw}");
                    assert!(spellings.iter().skip(index + 1).all(|other| other != one), "{raw}");
                    assert_eq!(spellings.get(index), Some(one));
                }
            }
        }
        assert!((10..=SPELLINGS_MAX).contains(&most), "{most}");
    }
}
