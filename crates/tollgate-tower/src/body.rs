//! `GatedBody`: the inner service's body or the text of a refusal, without boxing.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::body_pace::BodyPace;
use crate::gate::Admission;
use crate::replayed_body::{PolledFrame, hint_with};
use crate::settlement::BodySettlement;

pin_project! {
    /// The body of a response that passed the layer. The request counts as in flight until the body ends or is
    /// dropped.
    pub struct GatedBody<B> {
        #[pin]
        kind: BodyKind<B>,
        // Dropped when the body has ended, even if the body itself is kept.
        pass: BodyPass,
        // The pace of a body whose bytes are charged.
        pace: Option<Box<BodyPace>>,
    }
}

/// The hold of a request until the body of its response has ended.
#[derive(Debug)]
pub(crate) enum BodyPass {
    /// Nothing is held.
    None,
    /// A slot, or a charge that is settled.
    Held { _admission: Box<dyn Admission> },
    /// A charge that is settled by the body.
    Metered(Box<BodySettlement>),
}

pin_project! {
    #[project = KindProjected]
    enum BodyKind<B> {
        Inner { #[pin] body: B },
        Own { text: Option<Bytes> },
    }
}

impl<B> GatedBody<B> {
    pub(crate) fn inner(body: B, pass: BodyPass) -> GatedBody<B> {
        GatedBody { kind: BodyKind::Inner { body }, pass, pace: None }
    }

    pub(crate) fn paced(self, pace: Option<Box<BodyPace>>) -> GatedBody<B> {
        GatedBody { pace, ..self }
    }

    pub(crate) fn own(text: Bytes) -> GatedBody<B> {
        GatedBody {
            kind: BodyKind::Own { text: Some(text).filter(|text| !text.is_empty()) },
            pass: BodyPass::None,
            pace: None,
        }
    }

    /// Returns true while a rule that counts bytes holds a piece back: nothing comes although the inner service sends.
    pub fn is_held_back(&self) -> bool {
        self.held_bytes() > 0
    }

    fn held_bytes(&self) -> u64 {
        self.pace.as_ref().map_or(0, |pace| pace.held_bytes())
    }
}

impl<B> From<B> for GatedBody<B> {
    /// Wraps a body that no layer has seen, for servers that also send responses of their own.
    fn from(body: B) -> GatedBody<B> {
        GatedBody::inner(body, BodyPass::None)
    }
}

impl<B> fmt::Debug for GatedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedBody").field("pass", &self.pass).finish_non_exhaustive()
    }
}

impl<B> Body for GatedBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        loop {
            if let Some(pace) = self.as_mut().project().pace
                && let Some(piece) = ready!(pace.poll_piece(cx))
            {
                return Poll::Ready(Some(Ok(Frame::data(piece.into()))));
            }
            let frame = ready!(self.as_mut().poll_unpaced(cx));
            let Some(pace) = self.as_mut().project().pace else { return Poll::Ready(frame) };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(mut data))) => pace.hold(&mut data),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body } => body.is_end_stream() && self.held_bytes() == 0,
            BodyKind::Own { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body } => hint_with(body.size_hint(), self.held_bytes()),
            BodyKind::Own { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

impl<B: Body> GatedBody<B>
where
    B::Data: From<Bytes>,
{
    /// The next frame of the inner body, which the settlement sees, or of the layer's own.
    fn poll_unpaced(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<B> {
        let this = self.project();
        match this.kind.project() {
            KindProjected::Inner { mut body } => {
                if let BodyPass::Metered(metered) = this.pass
                    && metered.is_over()
                {
                    ready!(metered.poll_settled(cx));
                    *this.pass = BodyPass::None;
                    return Poll::Ready(None);
                }
                let frame = ready!(body.as_mut().poll_frame(cx));
                match (&frame, &mut *this.pass) {
                    (Some(Ok(frame)), BodyPass::Metered(metered)) => {
                        if let Some(data) = frame.data_ref() {
                            metered.see(data);
                        }
                        if body.is_end_stream() || metered.is_at_end() {
                            metered.end(true);
                        }
                    }
                    (Some(Ok(_)), _) => {}
                    // The end waits for the store, an error does not.
                    (None, BodyPass::Metered(metered)) => {
                        metered.end_of_stream();
                        ready!(metered.poll_settled(cx));
                        *this.pass = BodyPass::None;
                    }
                    _ => *this.pass = BodyPass::None,
                }
                Poll::Ready(frame)
            }
            KindProjected::Own { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
        }
    }
}
