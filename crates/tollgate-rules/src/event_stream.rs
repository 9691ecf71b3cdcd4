//! `EventStreamReader`: splits a stream of server-sent events into the data of each event, without a copy of it.

use arrayvec::ArrayVec;

/// The longest name of a field that is told from others: `event`.
const FIELD_BYTES_MAX: usize = 5;

/// The longest name of an event that is kept; a longer one is cut.
const NAME_BYTES_MAX: usize = 32;

/// A reader of `text/event-stream`, fed in pieces of any size. Lines end with CR, LF or CR LF.
#[derive(Debug, Default)]
pub(crate) struct EventStreamReader {
    line: EventLinePart,
    field: ArrayVec<u8, FIELD_BYTES_MAX>,
    /// True if the last byte was a CR: an LF after it belongs to the same end of line.
    after_cr: bool,
    /// Number of bytes of the mark at the beginning of the stream that were skipped; 3 once it cannot come.
    mark: usize,
    event: ArrayVec<u8, NAME_BYTES_MAX>,
    has_data: bool,
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamPart<'a> {
    /// Some bytes of the event's data; lines of data are joined by a line feed.
    Data(&'a [u8]),
    /// The end of an event that has data, with its name.
    End(&'a [u8]),
}

/// The part of a line that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EventLinePart {
    /// The name of a field; at the beginning of a line it is empty.
    #[default]
    Field,
    /// The space that may follow the colon.
    Space(FieldKind),
    Value(FieldKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    Data,
    Event,
    /// A comment, or a field without a meaning here.
    Other,
}

/// The byte order mark that may begin a stream.
const MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

impl EventStreamReader {
    /// Reads a piece of the stream, and calls `tell` with each part found.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], tell: &mut impl FnMut(StreamPart<'_>)) {
        while let Some(&byte) = bytes.first() {
            if self.skips(byte) {
                bytes = &bytes[1..];
                continue;
            }
            bytes = match self.line {
                _ if matches!(byte, b'\r' | b'\n') => {
                    self.after_cr = byte == b'\r';
                    self.end_line(tell);
                    &bytes[1..]
                }
                EventLinePart::Field => {
                    self.push_field(byte, tell);
                    &bytes[1..]
                }
                EventLinePart::Space(kind) => {
                    self.line = EventLinePart::Value(kind);
                    if byte == b' ' { &bytes[1..] } else { bytes }
                }
                EventLinePart::Value(kind) => self.push_value(kind, bytes, tell),
            };
        }
    }

    /// Returns true for the second byte of an end of line, and for the mark at the beginning of the stream.
    fn skips(&mut self, byte: u8) -> bool {
        if std::mem::take(&mut self.after_cr) && byte == b'\n' {
            return true;
        }
        let marks = MARK.get(self.mark) == Some(&byte);
        self.mark = if marks { self.mark + 1 } else { MARK.len() };
        marks
    }

    fn push_field(&mut self, byte: u8, tell: &mut impl FnMut(StreamPart<'_>)) {
        if byte != b':' {
            if self.field.try_push(byte).is_err() {
                self.line = EventLinePart::Value(FieldKind::Other);
            }
            return;
        }
        let kind = self.begin_value(tell);
        self.line = EventLinePart::Space(kind);
    }

    /// Ends the name of a field.
    fn begin_value(&mut self, tell: &mut impl FnMut(StreamPart<'_>)) -> FieldKind {
        match &*self.field {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    tell(StreamPart::Data(b"\n"));
                }
                FieldKind::Data
            }
            b"event" => {
                self.event.clear();
                FieldKind::Event
            }
            _ => FieldKind::Other,
        }
    }

    /// Reads a value up to the end of the line or of the piece, and returns the rest.
    fn push_value<'b>(
        &mut self,
        kind: FieldKind,
        bytes: &'b [u8],
        tell: &mut impl FnMut(StreamPart<'_>),
    ) -> &'b [u8] {
        let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (value, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        match kind {
            FieldKind::Data => tell(StreamPart::Data(value)),
            FieldKind::Event => {
                let room = self.event.remaining_capacity().min(value.len());
                self.event.extend(value[..room].iter().copied());
            }
            FieldKind::Other => {}
        }
        rest
    }

    fn end_line(&mut self, tell: &mut impl FnMut(StreamPart<'_>)) {
        if self.line == EventLinePart::Field && self.field.is_empty() {
            if std::mem::take(&mut self.has_data) {
                tell(StreamPart::End(&self.event));
            }
            self.event.clear();
        } else if self.line == EventLinePart::Field {
            // A line without a colon is a field without a value.
            self.begin_value(tell);
        }
        self.field.clear();
        self.line = EventLinePart::Field;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of a stream that arrives in pieces of this size: name, and data.
    fn events(stream: &[u8], piece: usize) -> Vec<(String, String)> {
        let (mut reader, mut data, mut found) =
            (EventStreamReader::default(), Vec::new(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for piece in stream.chunks(piece) {
            reader.feed(piece, &mut |part| match part {
                StreamPart::Data(bytes) => data.extend_from_slice(bytes),
                StreamPart::End(name) => found.push((text(name), text(&std::mem::take(&mut data)))),
            });
        }
        found
    }

    #[test]
    fn streams_are_split_into_events() {
        let long = "n".repeat(40);
        let cut = "n".repeat(NAME_BYTES_MAX);
        let cases: &[(&str, &[(&str, &str)])] = &[
            ("data: a\n\n", &[("", "a")]),
            ("data:a\r\rdata:b\r\n\r\ndata:c\n\n", &[("", "a"), ("", "b"), ("", "c")]),
            ("data: a\ndata: b\r\ndata:  c\n\n", &[("", "a\nb\n c")]),
            ("event: x\ndata: a\n\ndata: b\n\n", &[("x", "a"), ("", "b")]),
            ("event: x\nevent: y\ndata: a\n\n", &[("y", "a")]),
            ("data\n\n", &[("", "")]),
            ("data\ndata\n\n", &[("", "\n")]),
            (": comment\nid: 1\nretry: 5\n\nevents: z\ndataset: q\ndata: a\n\n", &[("", "a")]),
            ("\u{feff}data: a\n\n\u{feff}data: b\n\n", &[("", "a")]),
            ("data: a\n", &[]),
            ("event: x\n\ndata: a\n\n", &[("", "a")]),
            (&format!("event: {long}\ndata: a\n\n"), &[(&cut, "a")]),
        ];
        for (stream, want) in cases {
            for piece in 1..=stream.len() {
                let found = events(stream.as_bytes(), piece);
                let found: Vec<_> = found.iter().map(|(name, data)| (&**name, &**data)).collect();
                assert_eq!(found, *want, "{stream:?} in pieces of {piece}");
            }
        }
    }
}
