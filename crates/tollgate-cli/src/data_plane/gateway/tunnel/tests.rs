//! Tunnels between two streams in memory.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tollgate::{Algorithm, Limit};
use tollgate_rules::websocket_limits::{ExcessPolicy, LimitedDirection};

use super::*;

/// Bytes that each stream buffers.
const BUFFER_BYTES: usize = 64;

fn rates(messages: Option<u64>, bytes: Option<u64>, on_excess: ExcessPolicy) -> WebSocketLimits {
    let limit = |units: u64| {
        let limit = Limit::per_second(units).algorithm(Algorithm::TokenBucket).build();
        (Arc::new(limit.unwrap()), format!("{units}/second").into())
    };
    WebSocketLimits {
        connections: None,
        messages: messages.map(limit),
        bytes: bytes.map(limit),
        message_bytes: None,
        idle: None,
        lifetime: None,
        on_excess,
        close_code: 1_008,
        direction: LimitedDirection::Client,
    }
}

/// Starts a tunnel. Returns the client's end, the upstream's end, and the cause of the tunnel's end.
fn start(
    limits: WebSocketLimits,
) -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<CloseCause>) {
    let (client, client_end) = duplex(BUFFER_BYTES);
    let (upstream, upstream_end) = duplex(BUFFER_BYTES);
    let running = tokio::spawn(async move {
        let (limits, metrics) = ([Arc::new(limits)], TunnelMetrics::default());
        let streams = (client_end, upstream_end);
        let mut tunnel =
            RunningTunnel::new(streams, Some(&limits[..]), TunnelBounds::default(), Instant::now());
        poll_fn(|context| tunnel.poll(context, &metrics)).await;
        tunnel.close_cause().expect("it is a WebSocket")
    });
    (client, upstream, running)
}

/// A masked frame whose mask is zero.
fn client_frame(payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0x82, 0x80 | length, 0, 0, 0, 0], payload].concat()
}

async fn read(stream: &mut DuplexStream, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    stream.read_exact(&mut read).await.unwrap();
    read
}

async fn read_to_end(stream: &mut DuplexStream) -> Vec<u8> {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    read
}

fn close_frame(code: u16) -> Vec<u8> {
    [&[0x88, 0x02][..], &code.to_be_bytes()].concat()
}

/// The Close frame waits until the upstream's frame is complete, and nothing follows it.
#[tokio::test]
async fn the_frame_in_progress_is_finished_before_the_close_frame() {
    let (mut client, mut upstream, running) = start(rates(Some(1), None, ExcessPolicy::Close));
    upstream.write_all(&[0x82, 10, 1, 2, 3]).await.unwrap();
    assert_eq!(read(&mut client, 5).await, [0x82, 10, 1, 2, 3]);
    client.write_all(&client_frame(b"one")).await.unwrap();
    client.write_all(&client_frame(b"two")).await.unwrap();
    assert_eq!(read(&mut upstream, 9).await, client_frame(b"one"));
    // The upstream is at a boundary, so it gets its Close frame at once, masked.
    let close = read(&mut upstream, 6).await;
    assert_eq!((close[0], close[1] & 0x80), (0x88, 0x80));
    let reason = read(&mut upstream, usize::from(close[1] & 0x7F)).await;
    let mask = close[2..].iter().cycle();
    let reason: Vec<u8> = reason.iter().zip(mask).map(|(byte, mask)| byte ^ mask).collect();
    assert_eq!(reason, b"\x03\xF0message rate of 1/second exceeded");
    // The rest of the frame, and a frame that is too late.
    upstream.write_all(&[4, 5, 6, 7, 8, 9, 10, 0x82, 1, 0]).await.unwrap();
    assert_eq!(read(&mut client, 7).await, [4, 5, 6, 7, 8, 9, 10]);
    let close = read(&mut client, 2 + 2 + 33).await;
    assert_eq!(&close[..4], [0x88, 35, 0x03, 0xF0]);
    // Both answer, and the tunnel is over.
    client.write_all(&client_frame(b"discarded")).await.unwrap();
    client.write_all(&[0x88, 0x80, 0, 0, 0, 0]).await.unwrap();
    upstream.write_all(&close_frame(1_008)).await.unwrap();
    assert!(read_to_end(&mut client).await.is_empty());
    assert!(read_to_end(&mut upstream).await.is_empty());
    assert_eq!(running.await.unwrap(), CloseCause::Messages);
}

/// Waiting frames and slow receivers lose nothing, and keep the order.
#[tokio::test]
async fn nothing_is_lost_while_frames_wait_and_receivers_are_slow() {
    let (mut client, mut upstream, running) =
        start(rates(Some(1_000), Some(10_000), ExcessPolicy::Wait));
    let sent: Vec<u8> = (0..200_u8)
        .flat_map(|number| client_frame(&vec![number; usize::from(number) % 120]))
        .collect();
    let began = Instant::now();
    let (written, received) =
        tokio::join!(client.write_all(&sent), read(&mut upstream, sent.len()));
    written.unwrap();
    assert!(received == sent, "the bytes differ");
    // A second's bytes pass at once, all others in their time.
    let least = (sent.len() as u64 - 10_000) * 100;
    assert!(began.elapsed() >= Duration::from_micros(least), "{:?}", began.elapsed());
    drop((client, upstream));
    assert_eq!(running.await.unwrap(), CloseCause::Peer);
}

/// A peer's Close frame passes even if it has no units left, and nothing behind it does.
#[tokio::test]
async fn the_close_frame_of_a_peer_is_the_last() {
    let (mut client, mut upstream, running) = start(rates(Some(1), Some(20), ExcessPolicy::Wait));
    client.write_all(&client_frame(b"one")).await.unwrap();
    let close = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE8];
    client.write_all(&close).await.unwrap();
    client.write_all(&client_frame(b"behind")).await.unwrap();
    assert_eq!(read(&mut upstream, 9).await, client_frame(b"one"));
    assert_eq!(read(&mut upstream, 8).await, close);
    upstream.write_all(&close_frame(1_000)).await.unwrap();
    upstream.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await, close_frame(1_000));
    client.shutdown().await.unwrap();
    assert!(read_to_end(&mut upstream).await.is_empty());
    assert_eq!(running.await.unwrap(), CloseCause::Peer);
}

/// A client that leaves while its frames wait is gone at once; an upstream that leaves is heard to its end.
#[tokio::test]
async fn a_client_that_leaves_does_not_wait_for_its_frames() {
    let frames = [client_frame(b"one"), client_frame(b"two")].concat();
    let (mut client, mut upstream, running) = start(rates(Some(1), None, ExcessPolicy::Wait));
    client.write_all(&frames).await.unwrap();
    drop(client);
    assert_eq!(read_to_end(&mut upstream).await, client_frame(b"one"));
    assert_eq!(running.await.unwrap(), CloseCause::Peer);
    let limits = rates(Some(20), None, ExcessPolicy::Wait);
    let limits = WebSocketLimits { direction: LimitedDirection::Server, ..limits };
    let (mut client, mut upstream, _running) = start(limits);
    upstream.write_all(&[0x82, 0].repeat(25)).await.unwrap();
    drop(upstream);
    assert_eq!(read_to_end(&mut client).await, [0x82, 0].repeat(25));
}

#[tokio::test]
async fn the_first_deadline_that_passes_closes_the_tunnel() {
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(3_600));
    // Idle, lifetime | cause
    let rows = [
        (Some(short), None, CloseCause::Idle),
        (None, Some(short), CloseCause::Lifetime),
        (Some(short), Some(long), CloseCause::Idle),
        (Some(long), Some(short), CloseCause::Lifetime),
    ];
    for (idle, lifetime, cause) in rows {
        let limits = rates(None, None, ExcessPolicy::Close);
        let began = Instant::now();
        let (mut client, upstream, running) = start(WebSocketLimits { idle, lifetime, ..limits });
        let close = read(&mut client, 4).await;
        assert_eq!((close[0], close[2], close[3]), (0x88, 0x03, 0xE9));
        assert!(began.elapsed() >= short);
        drop((client, upstream));
        assert_eq!(running.await.unwrap(), cause);
    }
}

/// A violation behind a frame that the upstream is slow to take closes the tunnel once the frame has passed.
#[tokio::test]
async fn a_violation_is_not_forgotten_while_the_receiver_is_full() {
    let (mut client, mut upstream, running) = start(rates(None, None, ExcessPolicy::Close));
    // Half of it fits into the upstream's stream. The rest and the violation fill the client's stream, so the last byte
    // is not written before the tunnel has read them.
    let frame = client_frame(&[7; 2 * BUFFER_BYTES - 8]);
    client.write_all(&[&frame[..], &[0x81, 0x01, 0x00]].concat()).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read(&mut upstream, frame.len()).await, frame);
    assert_eq!(read(&mut upstream, 2).await[0], 0x88);
    assert_eq!(read(&mut client, 4).await[2..], 1_002_u16.to_be_bytes());
    drop((client, upstream));
    assert_eq!(running.await.unwrap(), CloseCause::ProtocolError);
}

/// The upstream violates the protocol while the client's Close frame is on its way, which stays the only one.
#[tokio::test]
async fn no_second_close_frame_follows_that_of_a_peer() {
    let (mut client, mut upstream, running) = start(rates(None, None, ExcessPolicy::Close));
    let close = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE8];
    client.write_all(&close[..7]).await.unwrap();
    assert_eq!(read(&mut upstream, 7).await, close[..7]);
    // A masked frame.
    upstream.write_all(&[0x81, 0x81]).await.unwrap();
    assert_eq!(read(&mut client, 4).await[2..], 1_002_u16.to_be_bytes());
    client.write_all(&close[7..]).await.unwrap();
    assert_eq!(read_to_end(&mut upstream).await, close[7..]);
    drop((client, upstream));
    assert_eq!(running.await.unwrap(), CloseCause::ProtocolError);
}

/// A tunnel that holds a slot is over when the slot is: a WebSocket is closed, any other tunnel is cut off.
#[tokio::test]
async fn no_tunnel_outlives_the_slot_that_it_holds() {
    let hour = Duration::from_secs(3_600);
    let limits = rates(None, None, ExcessPolicy::Close);
    let short_lived = [Arc::new(WebSocketLimits { lifetime: Some(hour), ..limits })];
    // Limits | lifetime of the slot | lifetime of the tunnel
    type LifetimeRow<'a> = (Option<&'a [Arc<WebSocketLimits>]>, Option<Duration>, Option<Duration>);
    let rows: [LifetimeRow<'_>; 6] = [
        (None, None, None),
        (None, Some(24 * hour), Some(24 * hour)),
        (Some(&[]), None, None),
        (Some(&[]), Some(24 * hour), Some(24 * hour)),
        (Some(&short_lived), Some(24 * hour), Some(hour)),
        (Some(&short_lived), None, Some(hour)),
    ];
    for (limits, lifetime, want) in rows {
        let now = Instant::now();
        let bounds = TunnelBounds { idle: None, lifetime };
        let streams = duplex(BUFFER_BYTES);
        let mut tunnel = RunningTunnel::new(streams, limits, bounds, now);
        assert_eq!(tunnel.next_deadline(), want.map(|lifetime| now + lifetime));
        let Some(end) = tunnel.next_deadline() else { continue };
        assert!(!tunnel.is_out_of_time(end - Duration::from_nanos(1)));
        assert_eq!(tunnel.is_out_of_time(end), limits.is_none());
        let cause = limits.map(|_| CloseCause::Lifetime);
        assert_eq!(tunnel.close_cause(), cause);
        // A WebSocket has time to say good-bye.
        assert!(tunnel.is_out_of_time(end + CLOSE_TIMEOUT));
    }
}

/// A client that has sent its Close frame is heard to its end, even if it leaves while frames wait in front of it.
#[tokio::test]
async fn frames_in_front_of_a_close_frame_pass_after_the_client_has_left() {
    let (mut client, mut upstream, running) = start(rates(Some(20), None, ExcessPolicy::Wait));
    let frames = [client_frame(b"").repeat(25), vec![0x88, 0x80, 0, 0, 0, 0]].concat();
    let sending = async {
        client.write_all(&frames).await.unwrap();
        drop(client);
    };
    let ((), received) = tokio::join!(sending, read_to_end(&mut upstream));
    assert_eq!(received, frames);
    drop(upstream);
    assert_eq!(running.await.unwrap(), CloseCause::Peer);
}
