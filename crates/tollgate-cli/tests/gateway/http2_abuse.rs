//! Patterns of abuse of HTTP/2: floods of frames that cost the client little. The gateway ends the connection or bears
//! it; its memory stays bounded, upstreams see no flood, and other clients are served.

use std::io;
use std::net::Ipv4Addr;

use testkit::http2::{self, END_HEADERS, END_STREAM, frame_kind};
use testkit::peers::RawUpstream;
use testkit::wait::until_true;

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use super::http2_wire::Http2Wire;

/// The address of the attacker.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Frames of a flood, if the gateway bears them all.
const FLOOD: u32 = 20_000;

/// Growth of the gateway's memory that a pattern may cause, in KiB.
const GROWTH_KIB_MAX: u64 = 16 << 10;

/// Requests of one connection that may be under way at once.
const STREAMS_MAX: usize = 100;

const PLAIN: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "app"), (":path", "/flood")];

/// A pattern: its name, and the flood.
type AbusePattern = (&'static str, fn(&mut Http2Wire) -> io::Result<()>);

const PATTERNS: [AbusePattern; 15] = [
    ("rapid reset", rapid_reset),
    ("MadeYouReset by a window of nothing", made_you_reset_by_window),
    ("MadeYouReset by data behind the end", made_you_reset_by_data),
    ("CONTINUATION without end", continuation_flood),
    ("empty CONTINUATION without end", empty_continuation_flood),
    ("SETTINGS", settings_flood),
    ("PING", ping_flood),
    ("PRIORITY", priority_flood),
    ("empty DATA", empty_data_flood),
    ("WINDOW_UPDATE", window_flood),
    ("RST_STREAM of streams that never were", reset_of_idle),
    ("a bomb of the header table", hpack_bomb),
    ("a window that overflows", window_overflow),
    ("streams that wait for ever", stalled_streams),
    ("half a head on each of many streams", half_heads),
];

fn odd(number: u32) -> u32 {
    2 * number + 1
}

fn rapid_reset(wire: &mut Http2Wire) -> io::Result<()> {
    for number in 0..FLOOD {
        wire.send_request(odd(number), &PLAIN, b"")?;
        wire.send_frame(frame_kind::RST_STREAM, 0, odd(number), &8_u32.to_be_bytes())?;
    }
    Ok(())
}

fn made_you_reset_by_window(wire: &mut Http2Wire) -> io::Result<()> {
    for number in 0..FLOOD {
        wire.send_request(odd(number), &PLAIN, b"")?;
        wire.send_frame(frame_kind::WINDOW_UPDATE, 0, odd(number), &[0; 4])?;
    }
    Ok(())
}

fn made_you_reset_by_data(wire: &mut Http2Wire) -> io::Result<()> {
    for number in 0..FLOOD {
        wire.send_request(odd(number), &PLAIN, b"")?;
        wire.send_frame(frame_kind::DATA, END_STREAM, odd(number), b"x")?;
    }
    Ok(())
}

fn continuation_flood(wire: &mut Http2Wire) -> io::Result<()> {
    let block = http2::header_block(&PLAIN);
    let more =
        http2::header_block(&[("x-more", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")]);
    wire.send_frame(frame_kind::HEADERS, END_STREAM, 1, &block)?;
    for _ in 0..FLOOD {
        wire.send_frame(frame_kind::CONTINUATION, 0, 1, &more)?;
    }
    Ok(())
}

fn empty_continuation_flood(wire: &mut Http2Wire) -> io::Result<()> {
    wire.send_frame(frame_kind::HEADERS, END_STREAM, 1, &http2::header_block(&PLAIN))?;
    for _ in 0..FLOOD {
        wire.send_frame(frame_kind::CONTINUATION, 0, 1, b"")?;
    }
    Ok(())
}

fn settings_flood(wire: &mut Http2Wire) -> io::Result<()> {
    (0..FLOOD)
        .try_for_each(|_| wire.send_frame(frame_kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]))
}

fn ping_flood(wire: &mut Http2Wire) -> io::Result<()> {
    (0..FLOOD).try_for_each(|_| wire.send_frame(frame_kind::PING, 0, 0, &[7; 8]))
}

fn priority_flood(wire: &mut Http2Wire) -> io::Result<()> {
    (0..FLOOD).try_for_each(|number| {
        wire.send_frame(frame_kind::PRIORITY, 0, odd(number), &[0, 0, 0, 0, 16])
    })
}

fn empty_data_flood(wire: &mut Http2Wire) -> io::Result<()> {
    wire.send_frame(frame_kind::HEADERS, END_HEADERS, 1, &http2::header_block(&PLAIN))?;
    (0..FLOOD).try_for_each(|_| wire.send_frame(frame_kind::DATA, 0, 1, b""))
}

fn window_flood(wire: &mut Http2Wire) -> io::Result<()> {
    wire.send_frame(frame_kind::HEADERS, END_HEADERS, 1, &http2::header_block(&PLAIN))?;
    let one = 1_u32.to_be_bytes();
    (0..FLOOD).try_for_each(|_| wire.send_frame(frame_kind::WINDOW_UPDATE, 0, 1, &one))
}

fn reset_of_idle(wire: &mut Http2Wire) -> io::Result<()> {
    (0..FLOOD).try_for_each(|number| {
        wire.send_frame(frame_kind::RST_STREAM, 0, odd(number), &8_u32.to_be_bytes())
    })
}

/// A field of 4,000 bytes is added to the table once and then named by one byte, 16,000 times in a request.
fn hpack_bomb(wire: &mut Http2Wire) -> io::Result<()> {
    let mut block = http2::header_block(&PLAIN);
    // A literal that is added to the table: 4,000 - 127 = 3,873 = 30 * 128 + 33.
    block.extend_from_slice(&[0x40, 1, b'x', 127, 33 + 128, 30]);
    block.extend_from_slice(&[b'a'; 4_000]);
    block.extend_from_slice(&[0x80 | 62; 10_000]);
    for number in 0..100 {
        wire.send_frame(frame_kind::HEADERS, END_HEADERS | END_STREAM, odd(number), &block)?;
    }
    Ok(())
}

fn window_overflow(wire: &mut Http2Wire) -> io::Result<()> {
    let most = (u32::MAX >> 1).to_be_bytes();
    (0..FLOOD).try_for_each(|_| wire.send_frame(frame_kind::WINDOW_UPDATE, 0, 0, &most))
}

/// Requests for which the client gives no window: their responses must wait, or be refused.
fn stalled_streams(wire: &mut Http2Wire) -> io::Result<()> {
    wire.send_frame(frame_kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])?;
    (0..5_000).try_for_each(|number| wire.send_request(odd(number), &PLAIN, b""))
}

fn half_heads(wire: &mut Http2Wire) -> io::Result<()> {
    let block = http2::header_block(&PLAIN);
    (0..FLOOD).try_for_each(|number| {
        wire.send_frame(frame_kind::HEADERS, 0, odd(number), &block[..block.len() / 2])
    })
}

#[test]
fn abuse_harms_nobody_else() {
    let upstream = RawUpstream::recorder();
    let flags = ["--workers", "2"];
    let gateway = GatewayProcess::start_with(upstream.address(), COUNTING_RULES, &flags);
    assert_eq!(gateway.get("/warm-up").status, 200);
    let (files, memory) = (gateway.open_files(), gateway.memory_peak_kib());
    for (name, flood) in PATTERNS {
        let mut wire = Http2Wire::connect_from(ATTACKER, gateway.address());
        // An error means that the gateway has closed the connection: it is allowed to.
        let _ = flood(&mut wire);
        for _ in 0..20 {
            assert_eq!(gateway.get("/other").text(), "/other", "during {name}");
        }
        let connections = upstream.connected();
        assert!(connections <= STREAMS_MAX + 2, "{connections} upstream connections by {name}");
        drop(wire);
    }
    let growth = gateway.memory_peak_kib() - memory;
    eprintln!("{} patterns: memory grew by {growth} KiB at most", PATTERNS.len());
    assert!(growth <= GROWTH_KIB_MAX, "memory grew by {growth} KiB");
    // Idle connections to the upstream stay in the pool.
    until_true("the connections to end", || gateway.open_files() <= files + upstream.connected());
    let requests = upstream.take_requests().expect("only good requests");
    assert!(
        requests.iter().all(|request| ["/other", "/flood", "/warm-up"].contains(&&*request.target))
    );
}
