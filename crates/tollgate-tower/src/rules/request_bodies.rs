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

use super::{LayerHeaders, RulesPacer, facts, identify, poll_once, tell};
use crate::body_host::{BodyReadEnd, BodyReadFailure};
use crate::gate::{
    BodyDemand, BodyPacer, BoxFuture, GateRequest, PieceAnswer, PieceTurn, RequestBodyReader,
};

/// Looks at a request before its body is read.
pub(super) async fn find_demand<S: InfallibleStore + 'static, C: Clock + 'static>(
    gatekeeper: &Arc<Gatekeeper<S, C>>,
    question: &GateRequest,
) -> BodyDemand {
    let (rules, now) = (gatekeeper.rules(), gatekeeper.now());
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
        BodyNeed::Read(reader) => BodyDemand::Read(Box::new(RequestNumbersReader(reader))),
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

impl<S: InfallibleStore + 'static, C: Clock + 'static> BodyPacer for RequestBytePacer<S, C> {
    fn piece_bytes_max(&self) -> u64 {
        self.pacer.as_ref().map_or(u64::MAX, |pacer| pacer.piece_bytes_max())
    }

    fn charge(self: Arc<Self>, bytes: u64, can_wait: bool) -> PieceAnswer {
        let is_due = self.bytes.count(bytes);
        let at_once = self.gatekeeper.answers_at_once();
        if is_due && at_once {
            let now = self.gatekeeper.now();
            expect_ready(self.gatekeeper.charge_request_bytes(&self.bytes, now));
        }
        match self.pacer.clone() {
            Some(pacer) => pacer.charge(bytes, can_wait),
            None if is_due && !at_once => PieceAnswer::Later(Box::pin(async move {
                let now = self.gatekeeper.clock_instant(self.gatekeeper.now());
                self.gatekeeper.charge_request_bytes(&self.bytes, now).await;
                PieceTurn::PassAfter(Wait::ZERO)
            })),
            None => PieceAnswer::Now(PieceTurn::PassAfter(Wait::ZERO)),
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
