//! `Wildcard`: a value in which each `*` stands for any text, also none.

/// A value with at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wildcard {
    /// The text before the first `*`.
    first: Box<str>,
    /// The texts between two `*`, without empty ones.
    between: Box<[Box<str>]>,
    /// The text after the last `*`.
    last: Box<str>,
}

impl Wildcard {
    /// `None`: there is no `*` in it.
    pub(crate) fn parse(value: &str) -> Option<Wildcard> {
        let (first, rest) = value.split_once('*')?;
        let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let parts = between.split('*').filter(|part| !part.is_empty());
        Some(Wildcard {
            first: first.into(),
            between: parts.map(Box::from).collect(),
            last: last.into(),
        })
    }

    /// Returns true if a text has to be searched, not only compared at its ends.
    pub(crate) fn searches(&self) -> bool {
        !self.between.is_empty()
    }

    /// Returns true if a text fits. Each part is searched for once, behind the one before it: the
    /// leftmost match is always as good as any other, so no pattern makes this slow.
    pub(crate) fn fits(&self, text: &str) -> bool {
        let Some(rest) = text.strip_prefix(&*self.first) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.last) else { return false };
        self.between.iter().all(|part| match rest.find(&**part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        Wildcard::parse(pattern).unwrap().fits(text)
    }

    /// The definition, without regard to speed.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            Some((byte, rest)) => {
                text.split_first().is_some_and(|(b, t)| b == byte && naive(rest, t))
            }
        }
    }

    #[test]
    fn stars_stand_for_any_text() {
        let rows = [
            ("*", "", true),
            ("*", "anything", true),
            ("files/*", "files/", true),
            ("files/*", "files", false),
            ("*.pdf", "a.pdf", true),
            ("*.pdf", ".pdf.txt", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "ac", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a**b", "ab", true),
            ("*ü*", "für", true),
        ];
        for (pattern, text, want) in rows {
            assert_eq!(fits(pattern, text), want, "{pattern} {text}");
        }
        assert_eq!(Wildcard::parse("plain"), None);
    }

    #[test]
    fn every_short_pattern_is_as_by_definition() {
        let words = |letters: &[u8], length: u32| -> Vec<Vec<u8>> {
            let many = (letters.len() as u64).pow(length);
            let word = |number: u64| -> Vec<u8> {
                let letter = |place| number / (letters.len() as u64).pow(place);
                (0..length).map(|place| letters[letter(place) as usize % letters.len()]).collect()
            };
            (0..many).map(word).collect()
        };
        let texts: Vec<Vec<u8>> = (0..=5).flat_map(|length| words(b"ab", length)).collect();
        let mut fitting = 0;
        for pattern in (1..=4).flat_map(|length| words(b"ab*", length)) {
            let shown = String::from_utf8(pattern.clone()).unwrap();
            let Some(wildcard) = Wildcard::parse(&shown) else { continue };
            for text in &texts {
                let want = naive(&pattern, text);
                fitting += u32::from(want);
                let text = std::str::from_utf8(text).unwrap();
                assert_eq!(wildcard.fits(text), want, "{shown} {text}");
            }
        }
        assert!(fitting > 500, "{fitting}");
    }

    #[test]
    fn no_pattern_is_slow() {
        // Backtracking would take 2^64 steps; this must only end.
        let pattern = "a*".repeat(10_000) + "b";
        let text = "a".repeat(60_000);
        assert!(!fits(&pattern, &text));
        assert!(fits(&pattern, &(text + "b")));
    }
}
