//! `EventHub`: one bounded list of events for all streams.
//!
//! A stream is a position in the list. One that reads too slowly, or comes back too late, finds the events at its
//! position gone, is told how many, and goes on with the oldest that is left. So a slow reader costs no memory of its
//! own, and coming back after an interruption is the same as reading slowly.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::listeners::response_body::ChunkSource;

/// Most streams that are open at once.
pub(super) const STREAMS_MAX: usize = 32;

/// Most events that are kept: about two minutes of an otherwise quiet server.
pub(super) const EVENTS_MAX: usize = 128;

/// Most bytes of events that are kept.
pub(super) const EVENTS_BYTES_MAX: usize = 1 << 20;

/// Most bytes of one event; a longer one is lost.
pub(super) const EVENT_BYTES_MAX: usize = 64 << 10;

/// The events of a server and the streams that read them.
pub(crate) struct EventHub {
    state: Mutex<HubState>,
}

struct HubState {
    /// Start of this run in microseconds since 1970: ids of another run mean nothing here.
    run: u64,
    /// The last events, the oldest first. Bounds: [`EVENTS_MAX`] and [`EVENTS_BYTES_MAX`].
    events: VecDeque<Bytes>,
    bytes: usize,
    /// Number of the next event, from 1.
    next: u64,
    /// Number of the last tick: new streams begin with it, so that a page shows something at once.
    last_tick: u64,
    /// Open streams, by their place; each holds the waker of the task that waits for an event.
    streams: [Option<Option<Waker>>; STREAMS_MAX],
    is_closed: bool,
}

/// A reason for not opening a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamRefusal {
    /// [`STREAMS_MAX`] streams are open.
    TooMany,
    /// The server is stopping.
    Stopping,
}

impl EventHub {
    /// A hub of a run that started at this time.
    pub(crate) fn new(run: u64) -> EventHub {
        let state = HubState {
            run,
            events: VecDeque::new(),
            bytes: 0,
            next: 1,
            last_tick: 0,
            streams: [const { None }; STREAMS_MAX],
            is_closed: false,
        };
        EventHub { state: Mutex::new(state) }
    }

    /// Adds an event for all streams. `data` is one line.
    pub(super) fn publish(&self, name: &str, data: &str) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        let number = state.next;
        state.next += 1;
        let frame = frame((state.run, number), name, data);
        // An empty place: streams tell their reader that one is lost.
        let frame = if frame.len() > EVENT_BYTES_MAX { Bytes::new() } else { frame };
        if name == "tick" {
            state.last_tick = number;
        }
        state.bytes += frame.len();
        state.events.push_back(frame);
        while state.events.len() > EVENTS_MAX || state.bytes > EVENTS_BYTES_MAX {
            state.bytes -= state.events.pop_front().map_or(0, |oldest| oldest.len());
        }
        wake(state);
    }

    /// Opens a stream. It continues after the event with this id, if that is one of this run; otherwise it begins
    /// with the last tick.
    pub(super) fn open(
        self: &Arc<EventHub>,
        last_id: Option<&str>,
    ) -> Result<EventStream, StreamRefusal> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(StreamRefusal::Stopping);
        }
        let place = state.streams.iter().position(Option::is_none);
        let place = place.ok_or(StreamRefusal::TooMany)?;
        state.streams[place] = Some(None);
        let known = last_id.and_then(|id| number_of(id, state.run));
        let next = match known {
            Some(number) => number.saturating_add(1).min(state.next),
            None => state.last_tick.max(state.oldest()),
        };
        let hub = self.clone();
        Ok(EventStream { hub, place, next, greeting: true })
    }

    /// Ends all streams; later ones are refused.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        (state.events, state.bytes) = (VecDeque::new(), 0);
        wake(state);
    }

    /// Number of open streams.
    #[cfg(test)]
    pub(super) fn open_streams(&self) -> usize {
        self.lock().streams.iter().flatten().count()
    }

    /// Number of events that are kept, and their bytes.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        let state = self.lock();
        assert_eq!(state.bytes, state.events.iter().map(Bytes::len).sum::<usize>());
        (state.events.len(), state.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        // Every change is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HubState {
    /// Number of the oldest event that is kept.
    fn oldest(&self) -> u64 {
        self.next - self.events.len() as u64
    }
}

/// Wakes all streams, without the lock: they take it.
fn wake(mut state: MutexGuard<'_, HubState>) {
    let wakers = state.streams.each_mut().map(|stream| stream.as_mut().and_then(Option::take));
    drop(state);
    wakers.into_iter().flatten().for_each(Waker::wake);
}

/// An event as it is sent.
fn frame((run, number): (u64, u64), name: &str, data: &str) -> Bytes {
    debug_assert!(!data.contains('\n'), "data is one line");
    Bytes::from(format!("id: {run:x}-{number}\nevent: {name}\ndata: {data}\n\n"))
}

/// The number in the id of an event of this run.
fn number_of(id: &str, run: u64) -> Option<u64> {
    let (of_run, number) = id.split_once('-')?;
    (u64::from_str_radix(of_run, 16) == Ok(run)).then(|| number.parse().ok())?
}

/// One reader of the events. Its place is free again when it is dropped.
pub(super) struct EventStream {
    hub: Arc<EventHub>,
    place: usize,
    /// Number of the next event to send.
    next: u64,
    /// True until the comment is sent that shows the reader that the stream is open.
    greeting: bool,
}

impl ChunkSource for EventStream {
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.hub.lock();
        if state.is_closed {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.greeting) {
            return Poll::Ready(Some(Bytes::from_static(
                b": events follow, a tick each second\n\n",
            )));
        }
        let oldest = state.oldest();
        let mut lost = oldest.saturating_sub(self.next);
        self.next += lost;
        while let Some(event) = state.events.get((self.next - oldest) as usize)
            && event.is_empty()
        {
            (lost, self.next) = (lost + 1, self.next + 1);
        }
        if lost > 0 {
            let mut data = String::new();
            let _ = write!(data, "{{\"events\":{lost}}}");
            return Poll::Ready(Some(frame((state.run, self.next - 1), "lost", &data)));
        }
        if let Some(event) = state.events.get((self.next - oldest) as usize) {
            self.next += 1;
            return Poll::Ready(Some(event.clone()));
        }
        let waker = &mut state.streams[self.place];
        match waker {
            Some(Some(known)) if known.will_wake(context.waker()) => {}
            _ => *waker = Some(Some(context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.hub.lock().streams[self.place] = None;
    }
}
