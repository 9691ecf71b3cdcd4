//! Settling a charge after the head of the response: by its body as it passes, and in the background if
//! nothing is left that could wait for a store.

use std::fmt;
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf;

use crate::gate::{Admission, BoxFuture};
use crate::layer::LayerConfig;

/// The most pieces of one frame that are seen. Nearly all bodies have one piece; the rest of a frame with
/// more is counted and not read.
const PIECES_MAX: usize = 16;

/// A settlement that a store has not answered yet. If it is dropped, the layer's background function gets it.
pub(crate) struct PendingSettlement {
    future: Option<BoxFuture<()>>,
    config: Arc<LayerConfig>,
}

impl PendingSettlement {
    pub(crate) fn new(future: BoxFuture<()>, config: &Arc<LayerConfig>) -> PendingSettlement {
        PendingSettlement { future: Some(future), config: Arc::clone(config) }
    }
}

impl Future for PendingSettlement {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl Drop for PendingSettlement {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.config.run_in_background(future);
        }
    }
}

impl fmt::Debug for PendingSettlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSettlement").finish_non_exhaustive()
    }
}

/// The charge of a request whose cost is in the body of its response. Dropping it before the end settles by the
/// part that has passed.
#[derive(Debug)]
pub(crate) struct BodySettlement {
    admission: Box<dyn Admission>,
    config: Arc<LayerConfig>,
    /// Bytes that are still to come, if the body states its length.
    bytes_left: Option<u64>,
    is_ended: bool,
    /// True once the body has returned its end, and must not be polled again.
    is_over: bool,
    pending: Option<PendingSettlement>,
}

impl BodySettlement {
    pub(crate) fn new(
        admission: Box<dyn Admission>,
        config: Arc<LayerConfig>,
        bytes_left: Option<u64>,
    ) -> BodySettlement {
        BodySettlement {
            admission,
            config,
            bytes_left,
            is_ended: false,
            is_over: false,
            pending: None,
        }
    }

    /// Sees the data of a frame, before it goes on.
    pub(crate) fn see(&mut self, data: &impl Buf) {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let pieces_len = data.chunks_vectored(&mut pieces);
        let mut unseen = data.remaining();
        for piece in &pieces[..pieces_len] {
            self.admission.see(piece);
            unseen = unseen.saturating_sub(piece.len());
        }
        if unseen > 0 {
            self.admission.skip(unseen as u64);
        }
        let length = data.remaining() as u64;
        self.bytes_left = self.bytes_left.map(|left| left.saturating_sub(length));
    }

    /// Returns true if all bytes of a body that states its length have passed.
    pub(crate) fn is_at_end(&self) -> bool {
        self.bytes_left == Some(0)
    }

    /// Settles at the end of the body, once. Servers that know the end stop asking, so this must not wait for
    /// them to ask again.
    pub(crate) fn end(&mut self, is_complete: bool) {
        if !std::mem::replace(&mut self.is_ended, true) {
            let settling = self.admission.end_body(is_complete);
            self.pending = settling.map(|future| PendingSettlement::new(future, &self.config));
        }
    }

    /// Settles at the end that the body itself returned.
    pub(crate) fn end_of_stream(&mut self) {
        self.is_over = true;
        self.end(true);
    }

    /// Returns true if the body has returned its end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Waits for the settlement; the store has a deadline.
    pub(crate) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.pending.as_mut().map_or(Poll::Ready(()), |pending| Pin::new(pending).poll(cx))
    }
}

impl Drop for BodySettlement {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// The hold of an upgraded connection: a slot of a concurrency limit stays taken until the last clone is
/// dropped.
///
/// The layer puts it into the extensions of a response that turns the connection into a tunnel: 101, or 2xx to
/// CONNECT. Keep it as long as the tunnel lives; without it the request ends with the head of its response.
#[derive(Clone, Debug)]
pub struct AdmissionGuard {
    _admission: Arc<dyn Admission>,
}

impl AdmissionGuard {
    pub(crate) fn new(admission: Box<dyn Admission>) -> AdmissionGuard {
        AdmissionGuard { _admission: admission.into() }
    }
}
