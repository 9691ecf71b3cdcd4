//! Tests of the list of events and of the streams that read it.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::hub::{
    EVENT_BYTES_MAX, EVENTS_BYTES_MAX, EVENTS_MAX, EventHub, EventStream, STREAMS_MAX,
    StreamRefusal,
};
use crate::listeners::response_body::ChunkSource;

const RUN: u64 = 0xabc;

/// The next chunk as text; `None` if the stream waits, and `"end"` at its end.
fn next(stream: &mut EventStream) -> Option<String> {
    match stream.poll_chunk(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => None,
        Poll::Ready(None) => Some("end".into()),
        Poll::Ready(Some(chunk)) => Some(String::from_utf8(chunk.into()).unwrap()),
    }
}

/// A stream whose greeting is read.
fn open(hub: &Arc<EventHub>, last_id: Option<&str>) -> EventStream {
    let mut stream = hub.open(last_id).unwrap();
    assert!(next(&mut stream).unwrap().starts_with(": "));
    stream
}

fn event(number: u64, name: &str, data: &str) -> Option<String> {
    Some(format!("id: abc-{number}\nevent: {name}\ndata: {data}\n\n"))
}

#[test]
fn a_stream_begins_with_the_last_tick_and_continues_after_an_id() {
    let hub = Arc::new(EventHub::new(RUN));
    let mut early = open(&hub, None);
    assert_eq!(next(&mut early), None);
    for (name, data) in [("tick", "1"), ("tick", "2"), ("reload", "3")] {
        hub.publish(name, data);
    }
    for (number, name) in [(1, "tick"), (2, "tick"), (3, "reload")] {
        assert_eq!(next(&mut early), event(number, name, &number.to_string()));
    }
    assert_eq!(next(&mut early), None);
    // Last id; number of the first event
    let rows = [
        (None, 2),
        (Some("abc-0"), 1),
        (Some("abc-1"), 2),
        (Some("abc-3"), 4),
        (Some("abc-99"), 4),
        (Some("abd-1"), 2),
        (Some("abc-x"), 2),
        (Some(""), 2),
        (Some("abc-18446744073709551615"), 4),
    ];
    for (last_id, first) in rows {
        let mut stream = open(&hub, last_id);
        let got = next(&mut stream);
        let number = |text: &String| text[8..text.find('\n').unwrap()].parse().unwrap();
        assert_eq!(got.as_ref().map_or(4, number), first, "{last_id:?}");
    }
}

#[test]
fn a_slow_reader_is_told_what_it_lost_and_memory_stays_bounded() {
    let hub = Arc::new(EventHub::new(RUN));
    let mut slow = open(&hub, None);
    let total = EVENTS_MAX as u64 * 10;
    (0..total).for_each(|turn| hub.publish("tick", &turn.to_string()));
    assert_eq!(hub.kept().0, EVENTS_MAX);
    let lost = total - EVENTS_MAX as u64;
    assert_eq!(next(&mut slow), event(lost, "lost", &format!("{{\"events\":{lost}}}")));
    assert_eq!(next(&mut slow), event(lost + 1, "tick", &lost.to_string()));
    let rest = std::iter::from_fn(|| next(&mut slow)).count();
    assert_eq!(rest, EVENTS_MAX - 1);

    let large = "x".repeat(EVENT_BYTES_MAX - 100);
    (0..100).for_each(|_| hub.publish("tick", &large));
    let (events, bytes) = hub.kept();
    assert!(bytes <= EVENTS_BYTES_MAX && bytes > EVENTS_BYTES_MAX - EVENT_BYTES_MAX, "{bytes}");
    let lost = 100 - events;
    assert!(next(&mut slow).unwrap().contains(&format!("{{\"events\":{lost}}}")));
}

#[test]
fn an_event_that_is_too_long_is_lost_alone() {
    let hub = Arc::new(EventHub::new(RUN));
    let mut stream = open(&hub, None);
    hub.publish("tick", "1");
    hub.publish("tick", &"x".repeat(EVENT_BYTES_MAX));
    hub.publish("tick", "3");
    assert_eq!(next(&mut stream), event(1, "tick", "1"));
    assert_eq!(next(&mut stream), event(2, "lost", "{\"events\":1}"));
    assert_eq!(next(&mut stream), event(3, "tick", "3"));
    assert_eq!(next(&mut stream), None);
}

#[test]
fn the_number_of_streams_is_bounded_and_a_closed_one_makes_room() {
    let hub = Arc::new(EventHub::new(RUN));
    let mut streams: Vec<_> = (0..STREAMS_MAX).map(|_| open(&hub, None)).collect();
    assert_eq!(hub.open(None).err(), Some(StreamRefusal::TooMany));
    streams.remove(7);
    assert_eq!(hub.open_streams(), STREAMS_MAX - 1);
    let mut again = open(&hub, None);
    hub.publish("tick", "1");
    assert_eq!(next(&mut again), event(1, "tick", "1"));
    hub.close();
    hub.publish("tick", "2");
    for stream in streams.iter_mut().chain([&mut again]) {
        assert_eq!(next(stream).as_deref(), Some("end"));
    }
    assert_eq!(hub.open(None).err(), Some(StreamRefusal::Stopping));
    assert_eq!(hub.kept().0, 0);
}

#[test]
fn publishing_wakes_every_reader_that_waits() {
    let hub = Arc::new(EventHub::new(RUN));
    let counter = Arc::new(WakeCounter::default());
    let waker = Waker::from(counter.clone());
    let mut context = Context::from_waker(&waker);
    let mut streams: Vec<_> = (0..3).map(|_| open(&hub, None)).collect();
    for stream in &mut streams {
        // Asked twice, it is still woken once.
        assert!((0..2).all(|_| stream.poll_chunk(&mut context).is_pending()));
    }
    hub.publish("tick", "1");
    assert_eq!(counter.0.load(std::sync::atomic::Ordering::Relaxed), 3);
}

/// Counts how often it was woken.
#[derive(Default)]
struct WakeCounter(std::sync::atomic::AtomicUsize);

impl std::task::Wake for WakeCounter {
    fn wake(self: Arc<WakeCounter>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
