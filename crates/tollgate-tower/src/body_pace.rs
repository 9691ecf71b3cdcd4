//! `BodyPace`: the pieces of a body on their way through a pacer, which charges each of them and may hold it back.
//!
//! One frame is held at most, and nothing is read from the body meanwhile, so that a sender feels the rate through
//! its connection and memory stays constant.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tollgate::Wait;

use crate::gate::{BodyPacer, BoxFuture, PieceAnswer, PieceTurn};
use crate::layer::LayerConfig;

/// The wait before a pacer is asked again that knows no better time: its store has no room for a piece of any
/// length.
const ASK_AGAIN_AFTER: Wait = Wait::from_micros(1_000_000);

/// The pace of one body.
pub(crate) struct BodyPace {
    pacer: Arc<dyn BodyPacer>,
    config: Arc<LayerConfig>,
    /// The rest of the frame that passes. Bound: one frame.
    held: Bytes,
    step: PaceStep,
}

/// The progress of the next piece.
enum PaceStep {
    /// It is not charged yet.
    Uncharged,
    /// A store is being asked.
    Asking(BoxFuture<PieceTurn>),
    /// It waits, to pass or to be charged.
    Sleeping { sleep: BoxFuture<()>, is_charged: bool },
    /// It may pass.
    Charged,
}

impl BodyPace {
    pub(crate) fn new(pacer: Arc<dyn BodyPacer>, config: Arc<LayerConfig>) -> BodyPace {
        BodyPace { pacer, config, held: Bytes::new(), step: PaceStep::Uncharged }
    }

    /// Bytes that wait.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.len() as u64
    }

    /// Takes the data of a frame. The one before must have passed.
    pub(crate) fn hold(&mut self, data: &mut impl Buf) {
        self.held = data.copy_to_bytes(data.remaining());
    }

    /// Passes the next piece when its time has come; `None` if nothing is held.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.held.is_empty() {
            return Poll::Ready(None);
        }
        let bytes = self.held_bytes().min(self.pacer.piece_bytes_max());
        loop {
            self.step = match &mut self.step {
                PaceStep::Charged => {
                    self.step = PaceStep::Uncharged;
                    return Poll::Ready(Some(self.held.split_to(bytes as usize)));
                }
                PaceStep::Uncharged => {
                    let answer = Arc::clone(&self.pacer).charge(bytes, self.config.can_sleep());
                    match answer {
                        PieceAnswer::Now(turn) => self.step_after(turn),
                        PieceAnswer::Later(answer) => PaceStep::Asking(answer),
                    }
                }
                PaceStep::Asking(answer) => {
                    let turn = ready!(answer.as_mut().poll(cx));
                    self.step_after(turn)
                }
                PaceStep::Sleeping { sleep, is_charged } => {
                    ready!(sleep.as_mut().poll(cx));
                    if *is_charged { PaceStep::Charged } else { PaceStep::Uncharged }
                }
            };
        }
    }

    fn step_after(&self, turn: PieceTurn) -> PaceStep {
        let (wait, is_charged) = match turn {
            PieceTurn::PassAfter(wait) if wait.is_zero() => return PaceStep::Charged,
            PieceTurn::PassAfter(wait) => (wait, true),
            PieceTurn::AskAgainAfter(wait) => (wait, false),
        };
        let wait = wait.duration().or(ASK_AGAIN_AFTER.duration()).unwrap_or_default();
        match self.config.sleep(wait) {
            Some(sleep) => PaceStep::Sleeping { sleep, is_charged },
            // The pacer was told that nobody can wait.
            None => PaceStep::Charged,
        }
    }
}

impl fmt::Debug for BodyPace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyPace").field("held_bytes", &self.held_bytes()).finish_non_exhaustive()
    }
}

/// The pace of a request's body, which is made before the gate has decided. Dropping it ends the body.
#[derive(Debug)]
pub(crate) struct RequestPace {
    slot: PacerSlot,
    config: Arc<LayerConfig>,
    /// `None` until the body of an admitted request is asked for.
    pace: Option<BodyPace>,
    is_ended: bool,
}

/// The place in which the layer puts the pacer of an admitted request, in the request's extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PacerSlot(Arc<OnceLock<Arc<dyn BodyPacer>>>);

impl PacerSlot {
    pub(crate) fn fill(&self, pacer: Arc<dyn BodyPacer>) {
        // Of two nested layers the outer one fills the slot that it made.
        let _ = self.0.set(pacer);
    }
}

impl RequestPace {
    pub(crate) fn new(config: &Arc<LayerConfig>) -> RequestPace {
        let (slot, config) = (PacerSlot::default(), Arc::clone(config));
        RequestPace { slot, config, pace: None, is_ended: false }
    }

    pub(crate) fn slot(&self) -> PacerSlot {
        self.slot.clone()
    }

    /// The pace, if the request was admitted under a rule that counts bytes.
    pub(crate) fn pace(&mut self) -> Option<&mut BodyPace> {
        if self.pace.is_none()
            && let Some(pacer) = self.slot.0.get()
        {
            self.pace = Some(BodyPace::new(Arc::clone(pacer), Arc::clone(&self.config)));
        }
        self.pace.as_mut()
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.pace.as_ref().map_or(0, BodyPace::held_bytes)
    }

    /// Ends the body, once. A body that was never asked for has not begun.
    pub(crate) fn end(&mut self, is_complete: bool) {
        let Some(pace) = &self.pace else { return };
        if !std::mem::replace(&mut self.is_ended, true)
            && let Some(settlement) = Arc::clone(&pace.pacer).end_request(is_complete)
        {
            self.config.run_in_background(settlement);
        }
    }
}

impl Drop for RequestPace {
    fn drop(&mut self) {
        self.end(false);
    }
}
