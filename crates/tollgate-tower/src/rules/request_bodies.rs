//! Bodies of requests under rules that estimate a cost by them: they are read before the decision, or their bytes are counted
//! as they pass.

use std::fmt;
use std::sync::Arc;

use http::Extensions;
use tollgate::{Clock, Wait};
use tollgate_rules::{
    Ask, BodyNeed, Gatekeeper, InfallibleStore, RequestBodyEnd, RequestByteCharges,
    RequestJsonReader, UnreadableBody, expect_ready,
};

use super::{IdentifiedCaller, LayerHeaders, RulesPacer, facts, identify, poll_once, tell};
use crate::body_host::{BodyReadEnd, BodyReadFailure};
use crate::gate::{
    BodyDemand, BodyPacer, BoxFuture, GateRequest, PieceAnswer, PieceTurn, RequestBodyReader,
};

/// Looks at a request before its body is read.
pub(super) async fn find_demand<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &mut GateRequest,
) -> BodyDemand {
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
    let version = Arc::clone(&rules);
    let fields = LayerHeaders::of(&question.head);
    // A header that names the caller in two ways is refused by the decision.
    let Ok((identity, warning)) = identify(&rules, question, &fields, now) else {
        return BodyDemand::None;
    };
    let facts = facts(&question.head, &fields, &identity, rules.estimates_costs());
    let cannot_wait = question.max_wait.is_none();
    let ask = Ask { facts, cost: question.cost, cannot_wait, ..Ask::default() };
    let read = gatekeeper.clock_instant(now);
    match gatekeeper.find_body_need(rules, &ask, read).await {
        BodyNeed::None => BodyDemand::None,
        BodyNeed::Read(reader) => {
            let caller = IdentifiedCaller::new(version, identity);
            question.head.extensions.insert(caller);
            BodyDemand::Read(Box::new(RequestNumbersReader(reader)))
        }
        BodyNeed::Refused(answer) => BodyDemand::Refuse(tell(question, &answer).warning(warning)),
    }
}

/// Finds the numbers in the body of a request that rules estimate its cost by.
struct RequestNumbersReader(RequestJsonReader);

impl RequestBodyReader for RequestNumbersReader {
    fn feed(&mut self, bytes: &[u8]) {
        self.0.feed(bytes);
    }

    fn needs_no_more(&self) -> bool {
        self.0.needs_no_more()
    }

    fn finish(
        self: Box<Self>,
        end: BodyReadEnd,
        extensions: &mut Extensions,
    ) -> Result<(), BodyReadFailure> {
        let refuses = self.0.refuses_unreadable();
        let json = self.0.finish(match end {
            BodyReadEnd::Complete => RequestBodyEnd::Complete,
            BodyReadEnd::TooLong => RequestBodyEnd::TooLong,
            BodyReadEnd::Skipped => RequestBodyEnd::Skipped,
        });
        let unreadable = json.unreadable();
        extensions.insert(json);
        match unreadable.filter(|_| refuses) {
            Some(UnreadableBody::NoJson) => Err(BodyReadFailure::NoJson),
            Some(UnreadableBody::TooLong) => Err(BodyReadFailure::TooLong),
            None => Ok(()),
        }
    }
}

/// Counts the bytes of a request's body under rules whose estimate is its length.
pub(super) struct RequestBytePacer<S: InfallibleStore + 'static, C: Clock + 'static> {
    pub(super) gatekeeper: Arc<Gatekeeper<S, C>>,
    pub(super) bytes: RequestByteCharges,
    /// The pacer of other rules, which count the bytes of both bodies.
    pub(super) pacer: Option<Arc<RulesPacer<S, C>>>,
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> RequestBytePacer<S, C> {
    /// Counts a piece that passes. Returns true if the bytes so far are to be charged now. A piece that has to ask again is not
    /// counted yet.
    fn is_due(&self, turn: PieceTurn, bytes: u64) -> bool {
        matches!(turn, PieceTurn::PassAfter(_)) && self.bytes.count(bytes)
    }

    /// Charges the bytes so far.
    async fn charge_counted(&self) {
        let now = self.gatekeeper.clock_instant(self.gatekeeper.now());
        self.gatekeeper.charge_request_bytes(&self.bytes, now).await;
    }
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> BodyPacer for RequestBytePacer<S, C> {
    fn piece_bytes_max(&self) -> u64 {
        self.pacer.as_ref().map_or(u64::MAX, |pacer| pacer.piece_bytes_max())
    }

    fn charge(self: Arc<Self>, bytes: u64, can_wait: bool) -> PieceAnswer {
        let paced = self.pacer.clone().map(|pacer| pacer.charge(bytes, can_wait));
        match paced.unwrap_or(PieceAnswer::Now(PieceTurn::PassAfter(Wait::ZERO))) {
            PieceAnswer::Now(turn) if !self.is_due(turn, bytes) => PieceAnswer::Now(turn),
            PieceAnswer::Now(turn) if self.gatekeeper.answers_at_once() => {
                expect_ready(self.charge_counted());
                PieceAnswer::Now(turn)
            }
            PieceAnswer::Now(turn) => PieceAnswer::Later(Box::pin(async move {
                self.charge_counted().await;
                turn
            })),
            PieceAnswer::Later(turn) => PieceAnswer::Later(Box::pin(async move {
                let turn = turn.await;
                if self.is_due(turn, bytes) {
                    self.charge_counted().await;
                }
                turn
            })),
        }
    }

    fn end_request(self: Arc<Self>, is_complete: bool) -> Option<BoxFuture<()>> {
        let now = self.gatekeeper.now();
        poll_once(async move {
            let now = self.gatekeeper.clock_instant(now);
            self.gatekeeper.settle_request_bytes(&self.bytes, is_complete, now).await;
        })
    }
}

impl<S: InfallibleStore + 'static, C: Clock + 'static> fmt::Debug for RequestBytePacer<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBytePacer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
