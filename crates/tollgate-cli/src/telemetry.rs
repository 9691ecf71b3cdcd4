//! Logs: one event, one line on standard error, as text or JSON.
//!
//! A separate thread writes, behind a bounded channel: if the reader of standard error is too slow, lines
//! are dropped and counted, and requests are still served. Values are escaped, so that no text of a request
//! can forge a line or control a terminal. Tokens are never passed to this module, and keys of callers
//! only hashed, unless the rules say `log_keys: plain`.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tollgate::store::memory::SnapshotError;
use tollgate::{Clock, Micros, SystemClock, Wait};
use tollgate_redis::{StoreError, StoreUrl};
use tollgate_rules::descriptors::DescriptorError;

use crate::cli::Report;
use crate::live::ReloadCause;
use crate::settings::StoreChoice;

/// Longest value, in characters.
const VALUE_CHARS_MAX: usize = 256;

/// Timeout of writing the last lines at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogLevel {
    Info,
    Warn,
    Error,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            LogLevel::Info => "info",
            LogLevel::Warn => "warn",
            LogLevel::Error => "error",
        }
    }
}

/// A value of a field. In JSON, numbers and booleans stay what they are, and everything else is a string.
pub(crate) trait LogValue: fmt::Display {
    /// Returns true if the text is a JSON value as it stands.
    fn is_json(&self) -> bool {
        false
    }
}

macro_rules! json_values {
    ($($type:ty),*) => {$(
        impl LogValue for $type {
            fn is_json(&self) -> bool {
                true
            }
        }
    )*};
}

macro_rules! texts {
    ($($type:ty),*) => {$(impl LogValue for $type {})*};
}

json_values!(bool, u16, u32, u64, usize, i32);
texts!(str, String, Box<str>, Arc<str>, IpAddr, SocketAddr, io::Error, std::path::Display<'_>);
texts!(
    Wait,
    DescriptorError,
    SnapshotError,
    StoreError,
    StoreUrl,
    StoreChoice,
    Report,
    ReloadCause
);

impl LogValue for serde_json::Value {
    fn is_json(&self) -> bool {
        !self.is_string()
    }
}

impl<T: LogValue + ?Sized> LogValue for &T {
    fn is_json(&self) -> bool {
        T::is_json(self)
    }
}

/// Name and value of a field of an event.
pub(crate) type LogField<'a> = (&'static str, &'a dyn LogValue);

/// The log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Logs {
    format: LogFormat,
    lines: SyncSender<LogLine>,
    /// Lines dropped because the channel was full or writing failed.
    dropped: Arc<AtomicU64>,
    /// True from a request to open the file again until the thread does so.
    is_reopening: Arc<AtomicBool>,
}

enum LogLine {
    Text(String),
    /// Wakes the thread, to open the file again.
    Reopen,
    /// Request to confirm that all lines before it have been written.
    Flush(SyncSender<()>),
}

impl Logs {
    /// Logs in this format to standard error. At most `lines_waiting_max` lines wait for the writer; further
    /// ones are dropped and counted.
    pub(crate) fn to_stderr(format: LogFormat, lines_waiting_max: usize) -> Logs {
        Logs::to(format, lines_waiting_max, io::stderr(), || None)
    }

    /// Logs in this format to a file, within the same bound. After [`reopen`](Logs::reopen) the lines go to what
    /// `open_again` returns; with `None` they stay in the old file.
    pub(crate) fn to_file(
        format: LogFormat,
        lines_waiting_max: usize,
        file: File,
        open_again: impl FnMut() -> Option<File> + Send + 'static,
    ) -> Logs {
        Logs::to(format, lines_waiting_max, file, open_again)
    }

    fn to<W: Write + Send + 'static>(
        format: LogFormat,
        lines_waiting_max: usize,
        out: W,
        open_again: impl FnMut() -> Option<W> + Send + 'static,
    ) -> Logs {
        let (lines, waiting) = sync_channel(lines_waiting_max);
        let dropped = Arc::new(AtomicU64::new(0));
        let is_reopening = Arc::new(AtomicBool::new(false));
        let logs =
            Logs { format, lines, dropped: dropped.clone(), is_reopening: is_reopening.clone() };
        let write =
            move || write_lines(format, &waiting, (&dropped, &is_reopening), (out, open_again));
        // If the thread cannot start, the channel is closed and every line counts as dropped.
        let _ = thread::Builder::new().name("logs".into()).spawn(write);
        logs
    }

    pub(crate) fn info(&self, event: &str, fields: &[LogField<'_>]) {
        self.log(LogLevel::Info, event, fields);
    }

    pub(crate) fn warn(&self, event: &str, fields: &[LogField<'_>]) {
        self.log(LogLevel::Warn, event, fields);
    }

    pub(crate) fn error(&self, event: &str, fields: &[LogField<'_>]) {
        self.log(LogLevel::Error, event, fields);
    }

    fn log(&self, level: LogLevel, event: &str, fields: &[LogField<'_>]) {
        let line = render(self.format, SystemClock.now(), level, event, fields);
        if self.lines.try_send(LogLine::Text(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Opens the file again, because its name belongs to another file now. Does not wait; standard error stays.
    pub(crate) fn reopen(&self) {
        self.is_reopening.store(true, Ordering::Release);
        // If the channel is full, the thread has lines to write and finds the flag.
        let _ = self.lines.try_send(LogLine::Reopen);
    }

    /// Number of lines dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far are written, or for [`FLUSH_TIMEOUT`].
    pub(crate) fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(LogLine::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

fn write_lines<W: Write>(
    format: LogFormat,
    waiting: &Receiver<LogLine>,
    (dropped, is_reopening): (&AtomicU64, &AtomicBool),
    (out, mut open_again): (W, impl FnMut() -> Option<W>),
) {
    let mut sink = LogSink { out, last_line_torn: false };
    let mut told = 0;
    while let Ok(line) = waiting.recv() {
        if is_reopening.swap(false, Ordering::Acquire)
            && let Some(out) = open_again()
        {
            sink = LogSink { out, last_line_torn: false };
        }
        let lost = dropped.load(Ordering::Relaxed) - told;
        if lost > 0 {
            let fields: [LogField<'_>; 1] = [("lines", &lost)];
            let line = render(
                format,
                SystemClock.now(),
                LogLevel::Warn,
                "log lines were dropped",
                &fields,
            );
            if sink.write(&line) {
                told += lost;
            }
        }
        match line {
            // The disk is full, or the reader has closed the pipe.
            LogLine::Text(text) if !sink.write(&text) => {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
            LogLine::Text(_) | LogLine::Reopen => {}
            LogLine::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// Writer of whole lines.
struct LogSink<W> {
    out: W,
    /// True if the last line was written in part: the next must start on a new line.
    last_line_torn: bool,
}

impl<W: Write> LogSink<W> {
    /// Writes a line. Returns true if all of it was written.
    fn write(&mut self, line: &str) -> bool {
        let end = if self.last_line_torn { "\n" } else { "" };
        let line = [end, line].concat();
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => break,
                Ok(bytes) => rest = &rest[bytes..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        if !rest.is_empty() {
            // If nothing of this line was written, an earlier torn line is still torn.
            self.last_line_torn |= rest.len() < line.len();
            return false;
        }
        self.last_line_torn = false;
        true
    }
}

/// Formats one line, with its line break.
fn render(
    format: LogFormat,
    at: Micros,
    level: LogLevel,
    event: &str,
    fields: &[LogField<'_>],
) -> String {
    let mut line = String::with_capacity(128);
    // Writing to a string does not fail.
    let _ = match format {
        LogFormat::Text => write_text(&mut line, at, level, event, fields),
        LogFormat::Json => write_json(&mut line, at, level, event, fields),
    };
    line.push('\n');
    line
}

fn write_text(
    line: &mut String,
    at: Micros,
    level: LogLevel,
    event: &str,
    fields: &[LogField<'_>],
) -> fmt::Result {
    write!(line, "{} {:<5} {}", timestamp(at), level.name(), Printable(event))?;
    for (name, value) in fields {
        let value = value.to_string();
        let plain = !value.is_empty() && !value.contains([' ', '"', '=']);
        match plain {
            true => write!(line, " {name}={}", Printable(&value))?,
            false => write!(line, " {name}=\"{}\"", Printable(&value.replace('"', "'")))?,
        }
    }
    Ok(())
}

fn write_json(
    line: &mut String,
    at: Micros,
    level: LogLevel,
    event: &str,
    fields: &[LogField<'_>],
) -> fmt::Result {
    let text = |text: &str| serde_json::Value::from(Printable(text).to_string()).to_string();
    write!(line, r#"{{"at":"{}","level":"{}""#, timestamp(at), level.name())?;
    write!(line, r#","event":{}"#, text(event))?;
    for (name, value) in fields {
        match value.is_json() {
            true => write!(line, r#","{name}":{value}"#)?,
            false => write!(line, r#","{name}":{}"#, text(&value.to_string()))?,
        }
    }
    line.write_char('}')
}

/// Formats an instant as `2026-11-15T12:02:40.123Z`.
pub(crate) fn timestamp(at: Micros) -> impl fmt::Display {
    let at_us = i64::try_from(at.as_u64()).expect("instants end below 2^53");
    let time = jiff::Timestamp::from_microsecond(at_us).unwrap_or_default();
    fmt::from_fn(move |f| write!(f, "{time:.3}"))
}

/// Untrusted text, escaped for a terminal and shortened.
pub(crate) struct Printable<'a>(pub(crate) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, c) in self.0.chars().enumerate() {
            match c {
                _ if index == VALUE_CHARS_MAX => return f.write_str("…"),
                c if is_invisible(c) => write!(f, "{}", c.escape_unicode())?,
                c if c.is_control() => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Returns true for characters that change the reading direction, end a line or are invisible.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn values_cannot_forge_lines() {
        let at = Micros::new(1_795_000_000_123_456);
        let long = "x".repeat(300);
        let rows: [(&str, &str, &str); 7] = [
            ("/rules", r"path=/rules", r#""path":"/rules""#),
            ("a b", r#"path="a b""#, r#""path":"a b""#),
            ("a\r\nb\x1b[31m", r"path=a\r\nb\u{1b}[31m", r#""path":"a\\r\\nb\\u{1b}[31m""#),
            ("\u{202e}x", r"path=\u{202e}x", r#""path":"\\u{202e}x""#),
            (
                "\u{61c}\u{200b}\u{e0041}\u{9b}31m",
                r"\u{61c}\u{200b}\u{e0041}\u{9b}31m",
                r"\\u{e0041}",
            ),
            ("a\"} {\"b", r#"path="a'} {'b""#, r#""path":"a\"} {\"b""#),
            (&long, "xxx…", "xxx…"),
        ];
        for (value, text, json) in rows {
            let fields: [LogField<'_>; 1] = [("path", &value)];
            let line = render(LogFormat::Text, at, LogLevel::Warn, "a file is odd", &fields);
            assert!(
                line.starts_with("2026-11-18T11:06:40.123Z warn  a file is odd path="),
                "{line}"
            );
            assert!(line.contains(text), "{line}");
            assert_eq!(line.find('\n'), Some(line.len() - 1));
            let line = render(LogFormat::Json, at, LogLevel::Warn, "a file is odd", &fields);
            assert!(line.contains(json), "{line}");
            let read: serde_json::Value = serde_json::from_str(&line).expect(&line);
            assert_eq!(read["event"], "a file is odd");
            assert_eq!(read["level"], "warn");
        }
    }

    #[test]
    fn numbers_and_truth_are_such_in_json_and_names_of_digits_are_not() {
        let (number, truth, user) = (42_u64, true, "42");
        let fields: [LogField<'_>; 4] =
            [("number", &number), ("nested", &&number), ("truth", &truth), ("user", &user)];
        let line = render(LogFormat::Json, Micros::new(0), LogLevel::Info, "an event", &fields);
        let read: serde_json::Value = serde_json::from_str(&line).expect(&line);
        assert_eq!(read["number"], 42);
        assert_eq!(read["nested"], 42);
        assert_eq!(read["truth"], true);
        assert_eq!(read["user"], "42");
        let line = render(LogFormat::Text, Micros::new(0), LogLevel::Info, "an event", &fields);
        assert!(line.ends_with(" number=42 nested=42 truth=true user=42\n"), "{line}");
    }

    /// A reader that takes only as many bytes as the test allows.
    #[derive(Clone, Default)]
    struct SlowWriter {
        taken: Arc<Mutex<Vec<u8>>>,
        /// Bytes accepted before the next error; `None` means all.
        room: Arc<Mutex<Option<usize>>>,
    }

    impl Write for SlowWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut room = self.room.lock().unwrap();
            let most = room.unwrap_or(bytes.len()).min(bytes.len());
            if most == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *room = room.map(|room| room - most);
            self.taken.lock().unwrap().extend_from_slice(&bytes[..most]);
            Ok(most)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_broke_off_does_not_swallow_the_next() {
        let slow = SlowWriter::default();
        let mut sink = LogSink { out: slow.clone(), last_line_torn: false };
        // room | written, all so far
        let rows = [
            (None, true, "one\n"),
            (Some(0), false, "one\n"),
            (None, true, "one\none\n"),
            (Some(2), false, "one\none\non"),
            (Some(0), false, "one\none\non"),
            (None, true, "one\none\non\none\n"),
            (None, true, "one\none\non\none\none\n"),
        ];
        for (room, written, all) in rows {
            *slow.room.lock().unwrap() = room;
            assert_eq!(sink.write("one\n"), written);
            assert_eq!(String::from_utf8(slow.taken.lock().unwrap().clone()).unwrap(), all);
        }
    }

    /// Writes once it may.
    struct BlockedWriter(Receiver<()>, SlowWriter);

    impl Write for BlockedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The sender is gone as soon as it may.
            let _ = self.0.recv();
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_tells_never_waits_and_what_is_lost_is_told() {
        let (go_on, blocked) = channel();
        let slow = SlowWriter::default();
        let logs = Logs::to(LogFormat::Text, 8, BlockedWriter(blocked, slow.clone()), || None);
        for turn in 0..1_000 {
            logs.info("a turn", &[("turn", &turn)]);
        }
        // Eight wait, and one may be under way.
        let dropped = logs.dropped();
        assert!((991..=992).contains(&dropped), "{dropped}");
        drop(go_on);
        logs.flush();
        // Until there was room, the request to flush was dropped too.
        while !String::from_utf8_lossy(&slow.taken.lock().unwrap()).contains("turn=7") {
            logs.flush();
        }
        logs.info("the last", &[]);
        logs.flush();
        let all = String::from_utf8(slow.taken.lock().unwrap().clone()).unwrap();
        // The writer may have come late, and told of some of them at once.
        let told = all.lines().filter(|line| line.contains("log lines were dropped"));
        let told = told.filter_map(|line| line.split_once("lines=")?.1.parse::<u64>().ok());
        assert_eq!(told.sum::<u64>(), dropped, "{all}");
        assert_eq!(all.matches("a turn").count() as u64, 1_000 - dropped, "{all}");
        assert!(all.ends_with("the last\n"), "{all}");
        assert_eq!(logs.dropped(), dropped);
    }

    #[test]
    fn a_file_is_opened_again_when_asked_and_no_line_is_lost() {
        let (first, second) = (SlowWriter::default(), SlowWriter::default());
        let mut others = vec![None, Some(second.clone())];
        let open_again = move || others.pop().flatten();
        let logs = Logs::to(LogFormat::Text, 8, first.clone(), open_again);
        let lines = |writer: &SlowWriter| {
            let text = String::from_utf8(writer.taken.lock().unwrap().clone()).unwrap();
            text.lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        for (event, reopens) in [("one", true), ("two", true), ("three", false)] {
            logs.info(event, &[]);
            logs.flush();
            if reopens {
                logs.reopen();
                logs.flush();
            }
        }
        // The second time there is nothing to open, and the lines stay where they were.
        assert_eq!(
            (lines(&first), lines(&second)),
            (vec!["one".into()], vec!["two".into(), "three".into()])
        );
    }
}
