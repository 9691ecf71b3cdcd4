//! Closes a connection without losing the last reply.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Closes the sending side, then reads and discards until the peer closes or `bytes_max` bytes have come; 0 reads
/// nothing. Closing with unread bytes would reset the connection, and a peer that is still sending would lose the last
/// reply. The caller sets a timeout.
pub(crate) async fn shutdown_and_drain<S>(stream: &mut S, bytes_max: usize)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // In TLS this sends `close_notify`, by which the peer tells the end from a truncation.
    if stream.shutdown().await.is_err() {
        return;
    }
    let (mut left, mut room) = (bytes_max, [0; 4 << 10]);
    while left > 0
        && let Ok(bytes) = stream.read(&mut room).await
        && (1..left).contains(&bytes)
    {
        left -= bytes;
    }
}
