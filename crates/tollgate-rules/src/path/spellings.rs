//! The spellings of a path: one for nearly every path, several where servers read it differently.

use std::borrow::Cow;

use super::reading::{Oddities, READINGS, Reading, Slashes, Start, normal};
use super::{Target, is_usual};

/// The most spellings that a path has: one for each way to read it.
pub const SPELLINGS_MAX: usize = READINGS.len();

/// Some spellings of a path, by number: a bit for each.
pub(crate) type SpellingSet = u16;

/// The numbers of the spellings in a set, in order.
pub(crate) fn each_of(set: SpellingSet) -> impl Iterator<Item = usize> {
    (0..SPELLINGS_MAX).filter(move |number| set >> number & 1 == 1)
}

const _: () = assert!(SPELLINGS_MAX <= SpellingSet::BITS as usize);

/// A path as some servers read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelling<'a> {
    text: Cow<'a, str>,
    slashes: Slashes,
}

impl Spelling<'_> {
    /// In normal escapes, without empty segments or a slash at the end. Where servers do not resolve them
    /// it has `.` and `..`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The slashes that the text has lost.
    pub(crate) fn slashes(&self) -> Slashes {
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
    /// Of a path as it was received.
    pub fn of(raw: &'a str) -> Spellings<'a> {
        let target = Target::of(raw);
        if target.with_fragment.is_none() && is_usual(target.path) {
            let first = Spelling { text: Cow::Borrowed(target.path), slashes: Slashes::None };
            return Spellings { first, others: Vec::new() };
        }
        Spellings::of_odd(&target)
    }

    #[cold]
    fn of_odd(target: &Target<'_>) -> Spellings<'a> {
        let owned = |(text, slashes)| Spelling { text: Cow::Owned(text), slashes };
        let mut all = Spellings { first: owned(normal(target.path)), others: Vec::new() };
        let odd = Oddities::of(target.path).with_fragment(target.with_fragment.is_some());
        let mut tried = arrayvec::ArrayVec::<Reading, SPELLINGS_MAX>::new();
        for reading in READINGS.iter().filter_map(|reading| odd.simplify(*reading)) {
            if tried.contains(&reading) {
                continue;
            }
            // The first is the normal form, which is there.
            if !tried.is_empty() {
                let path = match reading.start {
                    Start::WithFragment => target.with_fragment.unwrap_or(target.path),
                    Start::Plain | Start::AfterHost => target.path,
                };
                let spelling = owned(reading.read(path));
                if !all.iter().any(|one| *one == spelling) {
                    all.others.push(spelling);
                }
            }
            tried.push(reading);
        }
        all
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

    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        1 + self.others.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(raw: &str) -> Vec<String> {
        Spellings::of(raw).iter().map(|one| one.text().to_owned()).collect()
    }

    #[test]
    fn what_servers_read_differently_has_all_their_spellings() {
        let cases: [(&str, &[&str]); 24] = [
            ("/api/login", &["/api/login"]),
            ("/api/login/", &["/api/login"]),
            ("/api//login", &["/api/login"]),
            ("/caf%c3%a9", &["/caf%C3%A9"]),
            ("/api%2Flogin", &["/api%2Flogin", "/api/login"]),
            ("/api/login%2f", &["/api/login%2F", "/api/login"]),
            ("/api/x%2F..%2Flogin", &["/api/x%2F..%2Flogin", "/api/login", "/api/x/../login"]),
            ("/api/login;x=1", &["/api/login;x=1", "/api/login"]),
            ("/api/login%3Bx=1", &["/api/login;x=1", "/api/login"]),
            ("/api\\login", &["/api%5Clogin", "/api/login"]),
            ("/login;%2Fx", &["/login;%2Fx", "/login;/x", "/login", "/login/x"]),
            ("/api/..;/login", &["/api/..;/login", "/login", "/api/../login"]),
            ("/search/shoes/../../y", &["/y", "/search/shoes/../../y"]),
            ("/a/./b", &["/a/b", "/a/./b"]),
            ("/a//../b", &["/b", "/a/../b", "/a/b"]),
            ("//host/login", &["/host/login", "/login"]),
            ("/\\host/login", &["/%5Chost/login", "/host/login", "/login"]),
            ("///host//login/../x", &["/host/x", "/host/login/../x", "/x"]),
            ("/login#/../x", &["/login", "/login%23/../x"]),
            ("/login#x?y", &["/login", "/login%23x"]),
            ("/login?x#y", &["/login"]),
            ("http://host\\login", &["/%5Clogin", "/login"]),
            (
                "/a/b/../x%2F..%2Fy",
                &["/a/x%2F..%2Fy", "/a/b/../x%2F..%2Fy", "/a/y", "/a/b/../x/../y", "/a/x/../y"],
            ),
            ("/;/", &["/;", "/"]),
        ];
        for (raw, want) in cases {
            assert_eq!(texts(raw), want, "{raw}");
        }
    }

    #[test]
    fn slashes_that_go_are_remembered() {
        let cases = [
            ("/", Slashes::None),
            ("/a", Slashes::None),
            ("/a/", Slashes::Last),
            ("/a/.", Slashes::Last),
            ("/a/b/..", Slashes::Last),
            ("//", Slashes::Doubled),
            ("//a", Slashes::Doubled),
            ("/a//b", Slashes::Doubled),
            ("/a//", Slashes::Doubled),
            ("a", Slashes::None),
        ];
        for (raw, want) in cases {
            assert_eq!(Spellings::of(raw).first.slashes(), want, "{raw}");
        }
    }

    #[test]
    fn nobody_makes_more_spellings_than_there_are_readings() {
        let pieces = ["/", "//", "\\", "%2F", "%5C", ";", "%3B", "..", ".", "%2e", "#", "a", "?"];
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
