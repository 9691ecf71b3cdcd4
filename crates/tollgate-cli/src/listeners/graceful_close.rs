//! The end of a connection that the server wants to end.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Says that nothing follows, and reads on for nothing, fewer bytes than these, of 0 none: to close with bytes unread,
/// or still on their way, would reset the connection, and a peer that is still sending would lose the
/// answer that came before. Whoever calls bounds how long it may take.
pub(crate) async fn shutdown_and_drain<S>(stream: &mut S, bytes_max: usize)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Of TLS this is a word of its own: without it the peer could not tell the end from a cut.
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
