//! The thread's part of a recording: keeps chunks in the ring, and writes them into the file in order of time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tollgate::{Clock, Micros, SystemClock};

use super::entry::entries;
use super::recorder::{ChunkStripes, RecorderMessage, take_chunks};
use super::ring::{TrafficChunk, TrafficRing};
use super::sampling::{CurrentShare, SampleShare};
use super::trace_file::TraceFile;
use crate::telemetry::Logs;

/// Interval of writing into the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Age at which a request is written: by then threads that decided at the same time have packed theirs.
const SETTLED_US: u64 = 100_000;

/// Most bytes that wait to be put in order. Beyond that they are written at once.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// Longest wait for a message without a file.
const IDLE: Duration = Duration::from_secs(3_600);

/// Keeps requests in the ring and in the file.
pub(super) struct TrafficKeeper {
    pub(super) ring: Option<TrafficRing>,
    /// `None` also after it could not be written.
    pub(super) file: Option<SortedTraceFile>,
    pub(super) share: Arc<CurrentShare>,
    /// True if the file is to be opened again.
    pub(super) is_reopening: Arc<AtomicBool>,
}

impl TrafficKeeper {
    pub(super) fn run(mut self, messages: &Receiver<RecorderMessage>) {
        loop {
            let timeout = if self.file.is_some() { WRITE_EVERY } else { IDLE };
            match messages.recv_timeout(timeout) {
                Ok(RecorderMessage::Chunk(chunk)) => self.keep(chunk),
                Ok(RecorderMessage::Show(now, reply)) => {
                    if let Some(ring) = &self.ring {
                        // The asker may have given up.
                        drop(reply.send(ring.recorded(now)));
                    }
                }
                Ok(RecorderMessage::End) => return self.write(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.is_reopening.swap(false, Ordering::Acquire) {
                self.reopen_file();
            }
            let now = SystemClock.now();
            if self.file.as_ref().is_some_and(|file| file.is_due(now)) {
                self.write(Some(now));
            }
        }
    }

    /// Begins a new file if the old one was moved. Requests that wait to be written go into the new one.
    fn reopen_file(&mut self) {
        let Some(SortedTraceFile { file, logs, .. }) = &mut self.file else { return };
        match file.reopen() {
            Ok(true) => logs.info("recording reopened", &[("path", &file.path().display())]),
            Ok(false) => {}
            Err(error) => {
                let event = "cannot reopen the recording, it stays in the old file";
                logs.error(event, &[("path", &file.path().display()), ("error", &error)]);
            }
        }
        self.share.set(self.wanted_share());
    }

    fn keep(&mut self, chunk: TrafficChunk) {
        if let Some(file) = &mut self.file {
            file.waiting.append(&chunk);
        }
        let now = chunk.last_at;
        if let Some(ring) = &mut self.ring {
            ring.add(chunk, now);
        }
        self.share.set(self.wanted_share());
    }

    /// The larger share of ring and file.
    fn wanted_share(&self) -> SampleShare {
        let of_ring = self.ring.as_ref().map(TrafficRing::share);
        let of_file = self.file.as_ref().map(|file| file.file.share());
        of_ring.into_iter().chain(of_file).min().unwrap_or(SampleShare::NONE)
    }

    /// Writes the requests that are old enough at this instant; all of them without one. A file that cannot be
    /// written is given up: requests go on.
    fn write(&mut self, now: Option<Micros>) {
        let chunks: Vec<_> = self.file.iter().flat_map(|file| take_chunks(&file.stripes)).collect();
        chunks.into_iter().for_each(|chunk| self.keep(chunk));
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write(now) {
            let event = "cannot write the recording: it ends here";
            file.logs.error(event, &[("error", &error)]);
            self.file = None;
        }
    }
}

/// A trace file, and the requests that are not in it yet because earlier ones may follow.
pub(super) struct SortedTraceFile {
    file: TraceFile,
    logs: Logs,
    stripes: Arc<ChunkStripes>,
    ipv6_prefix: Arc<AtomicU8>,
    /// Bound: [`WAITING_BYTES_MAX`] and one chunk of each thread.
    waiting: TrafficChunk,
    written_at: Micros,
}

impl SortedTraceFile {
    pub(super) fn new(
        file: TraceFile,
        logs: Logs,
        stripes: Arc<ChunkStripes>,
        ipv6_prefix: Arc<AtomicU8>,
    ) -> SortedTraceFile {
        let (waiting, written_at) = (TrafficChunk::default(), SystemClock.now());
        SortedTraceFile { file, logs, stripes, ipv6_prefix, waiting, written_at }
    }

    fn is_due(&self, now: Micros) -> bool {
        let since_us = now.as_u64().abs_diff(self.written_at.as_u64());
        since_us >= WRITE_EVERY.as_micros() as u64 || self.waiting.packed.len() > WAITING_BYTES_MAX
    }

    fn write(&mut self, now: Option<Micros>) -> io::Result<()> {
        let settled = match now {
            Some(now) if self.waiting.packed.len() <= WAITING_BYTES_MAX => {
                self.written_at = now;
                Micros::new(now.as_u64().saturating_sub(SETTLED_US))
            }
            _ => Micros::MAX,
        };
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = waiting.filtered(|entry| entry.at() > settled);
        let ready = entries(&waiting.packed).filter(|entry| entry.at() <= settled);
        let mut ready: Vec<_> = ready.filter_map(|entry| entry.read()).collect();
        ready.sort_by_key(|request| request.at);
        let ipv6_prefix = self.ipv6_prefix.load(Ordering::Relaxed);
        for request in &ready {
            self.file.write(request, ipv6_prefix)?;
        }
        self.file.flush()
    }
}
