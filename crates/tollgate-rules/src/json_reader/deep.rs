//! `DeepValue`: a container below the deepest level that is read. Its brackets are counted, and no path leads into it.

/// A container being skipped.
#[derive(Debug)]
pub(super) struct DeepValue {
    /// Number of open brackets, this container's included.
    open: u32,
    part: DeepPart,
}

/// The part of the value at which the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeepPart {
    Plain,
    Text,
    /// After a backslash in a text.
    Escape,
}

impl Default for DeepValue {
    fn default() -> DeepValue {
        DeepValue { open: 1, part: DeepPart::Plain }
    }
}

impl DeepValue {
    /// Skips bytes of the container. Returns those behind it, and true if it has ended.
    pub(super) fn skip<'b>(&mut self, bytes: &'b [u8]) -> (&'b [u8], bool) {
        for (index, byte) in bytes.iter().enumerate() {
            self.part = match (self.part, byte) {
                (DeepPart::Text, b'"') => DeepPart::Plain,
                (DeepPart::Text, b'\\') => DeepPart::Escape,
                (DeepPart::Text | DeepPart::Escape, _) => DeepPart::Text,
                (DeepPart::Plain, b'"') => DeepPart::Text,
                (DeepPart::Plain, b'[' | b'{') => {
                    self.open = self.open.saturating_add(1);
                    DeepPart::Plain
                }
                (DeepPart::Plain, b']' | b'}') => {
                    self.open -= 1;
                    if self.open == 0 {
                        return (&bytes[index + 1..], true);
                    }
                    DeepPart::Plain
                }
                (DeepPart::Plain, _) => DeepPart::Plain,
            };
        }
        (&[], false)
    }
}
