//! Logs: one event, one line on standard error, as text or JSON.
//!
//! A thread of its own writes, behind a bounded channel: if whoever reads standard error stops
//! reading, lines are dropped and counted, and requests go on being served. Values are escaped,
//! so that nothing a stranger sends can forge a line or drive a terminal. Tokens are never
//! passed to this module, keys of callers only hashed, unless the rules say `log_keys: plain`.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tollgate::{Clock, Micros, SystemClock};

/// The most characters of one value.
const VALUE_CHARS_MAX: usize = 256;

/// How long the end of the program waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// One more thing to know about an event.
pub(crate) type Field<'a> = (&'static str, &'a dyn fmt::Display);

/// Where events are told. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Logs {
    format: LogFormat,
    lines: SyncSender<Line>,
    /// Lines that found no room, or that nobody took.
    dropped: Arc<AtomicU64>,
}

enum Line {
    Text(String),
    /// Everything before this has been written: tells the sender so.
    Flush(SyncSender<()>),
}

impl Logs {
    /// Logs in this form to standard error. At most so many lines wait for the writer: one more is
    /// dropped and counted.
    pub(crate) fn to_stderr(format: LogFormat, lines_waiting_max: usize) -> Logs {
        Logs::to(format, lines_waiting_max, io::stderr())
    }

    fn to(format: LogFormat, lines_waiting_max: usize, out: impl Write + Send + 'static) -> Logs {
        let (lines, waiting) = sync_channel(lines_waiting_max);
        let dropped = Arc::new(AtomicU64::new(0));
        let logs = Logs { format, lines, dropped: dropped.clone() };
        let write = move || write_lines(format, &waiting, &dropped, out);
        // Without its thread the channel is closed, and every line counts as dropped.
        let _ = thread::Builder::new().name("logs".into()).spawn(write);
        logs
    }

    pub(crate) fn info(&self, event: &str, fields: &[Field<'_>]) {
        self.tell(Level::Info, event, fields);
    }

    pub(crate) fn warn(&self, event: &str, fields: &[Field<'_>]) {
        self.tell(Level::Warn, event, fields);
    }

    pub(crate) fn error(&self, event: &str, fields: &[Field<'_>]) {
        self.tell(Level::Error, event, fields);
    }

    fn tell(&self, level: Level, event: &str, fields: &[Field<'_>]) {
        let line = render(self.format, SystemClock.now(), level, event, fields);
        if self.lines.try_send(Line::Text(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were never written, so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until what was told is written, but not for a reader who does not read.
    pub(crate) fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

fn write_lines(
    format: LogFormat,
    waiting: &Receiver<Line>,
    dropped: &AtomicU64,
    mut out: impl Write,
) {
    let mut told = 0;
    while let Ok(line) = waiting.recv() {
        let lost = dropped.load(Ordering::Relaxed) - told;
        if lost > 0 {
            let fields: [Field<'_>; 1] = [("lines", &lost)];
            let line =
                render(format, SystemClock.now(), Level::Warn, "log lines were dropped", &fields);
            if out.write_all(line.as_bytes()).is_ok() {
                told += lost;
            }
        }
        match line {
            Line::Text(text) => {
                // A full disk, or a reader that has gone.
                if out.write_all(text.as_bytes()).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Line::Flush(done) => drop(done.try_send(())),
        }
    }
}

/// One line with its end.
fn render(
    format: LogFormat,
    at: Micros,
    level: Level,
    event: &str,
    fields: &[Field<'_>],
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
    level: Level,
    event: &str,
    fields: &[Field<'_>],
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
    level: Level,
    event: &str,
    fields: &[Field<'_>],
) -> fmt::Result {
    let text = |text: &str| serde_json::Value::from(Printable(text).to_string()).to_string();
    write!(line, r#"{{"at":"{}","level":"{}""#, timestamp(at), level.name())?;
    write!(line, r#","event":{}"#, text(event))?;
    for (name, value) in fields {
        write!(line, r#","{name}":{}"#, text(&value.to_string()))?;
    }
    line.write_char('}')
}

/// `2026-11-15T12:02:40.123Z`.
pub(crate) fn timestamp(at: Micros) -> impl fmt::Display {
    let at_us = i64::try_from(at.as_u64()).expect("instants end below 2^53");
    let time = jiff::Timestamp::from_microsecond(at_us).unwrap_or_default();
    fmt::from_fn(move |f| write!(f, "{time:.3}"))
}

/// Text of a stranger, safe for a terminal, cut where it becomes too long.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, c) in self.0.chars().enumerate() {
            match c {
                _ if index == VALUE_CHARS_MAX => return f.write_str("…"),
                // Also those that turn the reading direction.
                '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(f, "{}", c.escape_unicode())?;
                }
                c if c.is_control() => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_forge_lines() {
        let at = Micros::new(1_795_000_000_123_456);
        let long = "x".repeat(300);
        let rows: [(&str, &str, &str); 5] = [
            ("/rules", r"path=/rules", r#""path":"/rules""#),
            ("a b", r#"path="a b""#, r#""path":"a b""#),
            ("a\r\nb\x1b[31m", r"path=a\r\nb\u{1b}[31m", r#""path":"a\\r\\nb\\u{1b}[31m""#),
            ("\u{202e}x", r"path=\u{202e}x", r#""path":"\\u{202e}x""#),
            (&long, "xxx…", "xxx…"),
        ];
        for (value, text, json) in rows {
            let fields: [Field<'_>; 1] = [("path", &value)];
            let line = render(LogFormat::Text, at, Level::Warn, "a file is odd", &fields);
            assert!(
                line.starts_with("2026-11-18T11:06:40.123Z warn  a file is odd path="),
                "{line}"
            );
            assert!(line.contains(text), "{line}");
            assert_eq!(line.find('\n'), Some(line.len() - 1));
            let line = render(LogFormat::Json, at, Level::Warn, "a file is odd", &fields);
            assert!(line.contains(json), "{line}");
            let read: serde_json::Value = serde_json::from_str(&line).expect(&line);
            assert_eq!(read["event"], "a file is odd");
            assert_eq!(read["level"], "warn");
        }
    }
}
