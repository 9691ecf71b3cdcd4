//! One direction of a tunnel: reads from one peer and writes to the other, frame by frame if it is a WebSocket.
//!
//! All tunnels of a worker read into one buffer. A tunnel keeps only bytes that it could not pass on at once, so an idle
//! one keeps none.

mod admission;

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tollgate::Micros;

use crate::data_plane::gateway::websocket::close_notice::CloseNotice;
use crate::data_plane::gateway::websocket::frame::{FrameReader, FrameSender};
use crate::data_plane::gateway::websocket::frame_budget::FrameBudget;
use crate::data_plane::gateway::websocket::tunnel_metrics::TunnelMetrics;

/// Bytes of the buffer that all tunnels of a thread share, and the most that one direction of a tunnel keeps.
const SCRATCH_BYTES: usize = 16 << 10;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into());
}

/// One direction of a tunnel.
pub(super) struct TunnelDirection {
    sender: FrameSender,
    /// The frames of a WebSocket; `None` if bytes pass unread.
    frames: Option<FrameReader>,
    budget: FrameBudget,
    /// Bytes that have not been passed on. Bound: [`SCRATCH_BYTES`].
    held: Vec<u8>,
    /// Bytes at the beginning of `held` that have been admitted.
    admitted: usize,
    /// The instant from which the next frame may pass, if a rate makes it wait.
    pub(super) wait_until: Option<Micros>,
    /// The gateway's Close frame, which is sent at the next boundary of frames.
    close_frame: Option<Vec<u8>>,
    /// Bytes of the gateway's Close frame that are being written.
    unsent_close: Vec<u8>,
    /// True once a Close frame has passed or is being sent: nothing may follow it, so the rest is discarded.
    is_closed: bool,
    /// True once the sender's own Close frame has arrived.
    pub(super) sender_closed: bool,
    /// True if the sender violated the protocol, so that no more frames can be found.
    is_unreadable: bool,
    /// True once the sender has ended its stream.
    pub(super) sender_ended: bool,
    needs_flush: bool,
    is_shut_down: bool,
    /// Bytes received so far.
    pub(super) received: u64,
}

/// The end of a direction's progress.
pub(super) enum DirectionEvent {
    /// The sender's stream has ended, and the receiver knows.
    Ended,
    /// The tunnel has to be closed.
    Close(CloseNotice),
}

/// The reason why bytes are not passed on.
enum PassEnd {
    /// All of them were, except an incomplete header.
    NeedsMore,
    /// The receiver takes no more for now.
    ReceiverFull,
    /// A rate makes them wait.
    RateFull,
    /// The frame in progress is over, and the gateway's Close frame or a violation of the protocol is next.
    AtBoundary,
    Close(CloseNotice),
}

impl TunnelDirection {
    /// A direction of a tunnel that is not a WebSocket.
    pub(super) fn unread(sender: FrameSender) -> TunnelDirection {
        TunnelDirection {
            sender,
            frames: None,
            budget: FrameBudget::default(),
            held: Vec::new(),
            admitted: 0,
            wait_until: None,
            close_frame: None,
            unsent_close: Vec::new(),
            is_closed: false,
            sender_closed: false,
            is_unreadable: false,
            sender_ended: false,
            needs_flush: false,
            is_shut_down: false,
            received: 0,
        }
    }

    /// A direction of a WebSocket.
    pub(super) fn websocket(sender: FrameSender, budget: FrameBudget) -> TunnelDirection {
        let frames = Some(FrameReader::new(sender));
        TunnelDirection { frames, budget, ..TunnelDirection::unread(sender) }
    }

    /// Ends the direction with a Close frame, unless one has passed or is in progress. The frame in progress is finished
    /// first.
    pub(super) fn close(&mut self, notice: &CloseNotice) {
        self.wait_until = None;
        if !self.is_closed && !self.sender_closed {
            self.close_frame = Some(notice.frame(self.sender));
        }
    }

    /// Returns true if a Close frame has passed.
    pub(super) fn has_sent_close(&self) -> bool {
        self.is_closed && self.unsent_close.is_empty() && self.admitted == 0 && !self.needs_flush
    }

    /// Returns true if the sender has no more to say.
    pub(super) fn has_heard_all(&self) -> bool {
        self.sender_closed || self.sender_ended
    }

    /// Returns true if the sender's Close frame cannot be recognized any more.
    pub(super) fn is_unreadable(&self) -> bool {
        self.is_unreadable
    }

    /// Passes bytes on for as long as both peers allow it.
    pub(super) fn poll<R, W>(
        &mut self,
        context: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        now: Micros,
        metrics: &TunnelMetrics,
    ) -> Poll<io::Result<DirectionEvent>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.is_shut_down && self.sender_ended {
            return Poll::Ready(Ok(DirectionEvent::Ended));
        }
        loop {
            ready!(self.poll_send_close(context, to))?;
            let end = match self.held.is_empty() {
                true => PassEnd::NeedsMore,
                false => self.pass_held(context, to, now, metrics)?,
            };
            let end = match end {
                PassEnd::NeedsMore if !self.sender_ended => {
                    match self.poll_receive(context, from, to, now, metrics) {
                        Poll::Ready(received) => received?,
                        Poll::Pending => {
                            ready!(self.poll_flush(context, to))?;
                            return Poll::Pending;
                        }
                    }
                }
                end => end,
            };
            match end {
                PassEnd::NeedsMore if self.sender_ended => {
                    ready!(self.poll_shutdown(context, to))?;
                    return Poll::Ready(Ok(DirectionEvent::Ended));
                }
                PassEnd::NeedsMore | PassEnd::AtBoundary => {}
                PassEnd::ReceiverFull => return Poll::Pending,
                PassEnd::RateFull => {
                    ready!(self.poll_flush(context, to))?;
                    ready!(self.poll_read_ahead(context, from, metrics))?;
                }
                PassEnd::Close(notice) => return Poll::Ready(Ok(DirectionEvent::Close(notice))),
            }
        }
    }

    /// Tells the receiver that nothing follows.
    pub(super) fn poll_shutdown<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<io::Result<()>> {
        if !self.is_shut_down {
            ready!(Pin::new(to).poll_shutdown(context))?;
            (self.is_shut_down, self.needs_flush) = (true, false);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<io::Result<()>> {
        if self.needs_flush {
            ready!(Pin::new(to).poll_flush(context))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the gateway's Close frame, if there is one and the last frame is complete.
    fn poll_send_close<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<io::Result<()>> {
        let is_at_boundary = self.frames.as_ref().is_some_and(FrameReader::is_at_boundary);
        if is_at_boundary
            && self.admitted == 0
            && let Some(frame) = self.close_frame.take()
        {
            (self.unsent_close, self.is_closed) = (frame, true);
        }
        while !self.unsent_close.is_empty() {
            let written = ready!(Pin::new(&mut *to).poll_write(context, &self.unsent_close))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unsent_close.drain(..written);
            self.needs_flush = true;
        }
        Poll::Ready(Ok(()))
    }

    fn pass_held<W: AsyncWrite + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        to: &mut W,
        now: Micros,
        metrics: &TunnelMetrics,
    ) -> io::Result<PassEnd> {
        let held = std::mem::take(&mut self.held);
        let (used, end) = self.pass(&held, context, to, now, metrics)?;
        self.held = match used {
            0 => held,
            _ => held[used..].to_vec(),
        };
        Ok(end)
    }

    /// Receives more bytes behind those that are held, and passes them on.
    fn poll_receive<R, W>(
        &mut self,
        context: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        now: Micros,
        metrics: &TunnelMetrics,
    ) -> Poll<io::Result<PassEnd>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        SCRATCH.with_borrow_mut(|scratch| {
            let held = self.held.len();
            scratch[..held].copy_from_slice(&self.held);
            let mut room = ReadBuf::new(&mut scratch[held..]);
            ready!(Pin::new(from).poll_read(context, &mut room))?;
            let received = room.filled().len();
            if received == 0 {
                // An incomplete header is of no use to the receiver.
                (self.sender_ended, self.held) = (true, Vec::new());
                return Poll::Ready(Ok(PassEnd::NeedsMore));
            }
            self.count_received(received, metrics);
            let bytes = &scratch[..held + received];
            let (used, end) = self.pass(bytes, context, to, now, metrics)?;
            self.held = bytes[used..].to_vec();
            Poll::Ready(Ok(end))
        })
    }

    /// Receives bytes while others wait for their rate, as far as there is room: otherwise a client that leaves would not
    /// be noticed, and would keep its place until all of its frames have had their turn.
    fn poll_read_ahead<R: AsyncRead + Unpin>(
        &mut self,
        context: &mut Context<'_>,
        from: &mut R,
        metrics: &TunnelMetrics,
    ) -> Poll<io::Result<()>> {
        let room = SCRATCH_BYTES - self.held.len();
        if room == 0 || self.sender_ended {
            return Poll::Pending;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut room = ReadBuf::new(&mut scratch[..room]);
            ready!(Pin::new(from).poll_read(context, &mut room))?;
            self.held.extend_from_slice(room.filled());
            self.count_received(room.filled().len(), metrics);
            match (room.filled().is_empty(), self.sender) {
                (false, _) => {}
                (true, FrameSender::Client) if !self.holds_close_frame() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                // A client that took its leave is heard to its end, and the client still waits for the frames of an
                // upstream that has gone.
                (true, _) => self.sender_ended = true,
            }
            Poll::Ready(Ok(()))
        })
    }

    fn count_received(&mut self, bytes: usize, metrics: &TunnelMetrics) {
        self.received += bytes as u64;
        if self.frames.is_some() {
            metrics.count_bytes(self.sender, bytes);
        }
    }

    /// Passes on what may pass. Returns the number of bytes that are done with, and why there are not more.
    fn pass<W: AsyncWrite + Unpin>(
        &mut self,
        bytes: &[u8],
        context: &mut Context<'_>,
        to: &mut W,
        now: Micros,
        metrics: &TunnelMetrics,
    ) -> io::Result<(usize, PassEnd)> {
        let end = self.admit(bytes, now, metrics);
        let mut done = 0;
        while self.admitted > 0 {
            let admitted = &bytes[done..done + self.admitted];
            match Pin::new(&mut *to).poll_write(context, admitted)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => {
                    done += written;
                    self.admitted -= written;
                    self.needs_flush = true;
                }
                Poll::Pending => return Ok((done, PassEnd::ReceiverFull)),
            }
        }
        if self.is_closed || self.is_unreadable {
            done += self.discard(&bytes[done..]);
        }
        Ok((done, end))
    }
}
