//! `Gate`: whatever the layer can ask whether a request may pass.
//!
//! There are two: [`KeyedGate`](crate::KeyedGate), limits of your own over a limiter in this process, and a whole
//! `Gatekeeper`, with the feature `rules`. A third is one method to write.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{HeaderName, Request, request, response};
use tollgate::headers::{Dialect, PolicyName, RateLimitReply};
use tollgate::{DecidedBy, Wait};

use crate::decision::{GateDecision, LayerNumbers};
use crate::warning::Warning;

/// A future in a box: what a gate needs that has to wait.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Whatever the layer can ask whether a request may pass.
pub trait Gate: Send + Sync + 'static {
    /// Decides about a request, at once or later. Whatever it waits for needs a deadline of its own:
    /// the layer waits as long as it does. A gate that waits [takes](GateRequest::take) the question along,
    /// and brings it back with the answer.
    fn ask(&self, question: &mut GateRequest) -> GateAnswer;
}

/// An answer that is there, or one to wait for.
pub enum GateAnswer {
    /// Decided.
    Now(GateVerdict),
    /// Somebody else has to be asked.
    Later(BoxFuture<(GateRequest, GateVerdict)>),
}

impl GateAnswer {
    /// Asks somebody who may have to wait, and looks once whether the answer is ready, as it is over a
    /// store in this process.
    pub fn of<F>(question: &mut GateRequest, ask: impl FnOnce(GateRequest) -> F) -> GateAnswer
    where
        F: Future<Output = (GateRequest, GateVerdict)> + Send + 'static,
    {
        let mut future: BoxFuture<(GateRequest, GateVerdict)> = Box::pin(ask(question.take()));
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((back, answered)) => {
                *question = back;
                GateAnswer::Now(answered)
            }
            Poll::Pending => GateAnswer::Later(future),
        }
    }
}

impl fmt::Debug for GateAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GateAnswer::Now(_) => "Now",
            GateAnswer::Later(_) => "Later",
        })
    }
}

/// A request, and what the layer knows about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct GateRequest {
    /// The request without its body.
    pub head: request::Parts,
    /// The address at the other end of the connection, if the layer finds it.
    pub peer: Option<IpAddr>,
    /// What it costs, if the layer was told; otherwise as the gate sees it.
    pub cost: Option<u64>,
    /// How long the layer can hold it back. `None`: a delay is a refusal.
    pub max_wait: Option<Duration>,
    /// The layer will tell the true cost once the response is there.
    pub settles: bool,
    /// Whether to look for signs of misuse: true for the first requests of a layer only.
    pub watching: bool,
    pub(crate) dialects: Option<Arc<[Dialect]>>,
    pub(crate) layers: LayerNumbers,
    pub(crate) in_response: bool,
}

/// What a gate says, in the words that clients are told.
#[derive(Clone, Copy, Debug)]
pub struct DecisionDetails<'a> {
    /// The decision as clients are told.
    pub reply: &'a RateLimitReply<'a>,
    /// In these header dialects, unless the layer has its own.
    pub dialects: &'a [Dialect],
    /// Who decided.
    pub decided_by: DecidedBy,
    /// How long to hold an admitted request; at most the question's `max_wait`.
    pub delay: Wait,
    /// What clients call the binding limit.
    pub policy: Option<&'a PolicyName>,
    /// The rule that it is of.
    pub rule: Option<&'a str>,
    /// Limits that are exceeded and only warn.
    pub warnings: &'a [&'a PolicyName],
}

impl GateRequest {
    /// The question, with an empty one left in its place: for a gate that has to wait.
    #[must_use]
    pub fn take(&mut self) -> GateRequest {
        let empty = GateRequest { head: Request::new(()).into_parts().0, dialects: None, ..*self };
        std::mem::replace(self, empty)
    }

    /// The answer to it.
    pub fn decided(&self, said: &DecisionDetails<'_>) -> GateVerdict {
        let dialects = self.dialects.as_deref().unwrap_or(said.dialects);
        let decision = GateDecision::new(said, dialects, (self.layers, self.in_response));
        GateVerdict::new(VerdictKind::Decided(decision))
    }

    /// No limit applies.
    pub fn unlimited(&self) -> GateVerdict {
        GateVerdict::new(VerdictKind::Unlimited)
    }

    /// The header field that says who is calling stands twice, with different values: whichever was
    /// believed, the caller might have chosen it.
    pub fn ambiguous_header(&self, header: HeaderName) -> GateVerdict {
        GateVerdict::new(VerdictKind::AmbiguousHeader(header))
    }
}

/// A question's answer.
#[derive(Debug)]
pub struct GateVerdict {
    pub(crate) kind: VerdictKind,
    pub(crate) admission: Option<Box<dyn Admission>>,
    pub(crate) warning: Option<Warning>,
}

#[derive(Debug)]
pub(crate) enum VerdictKind {
    Decided(GateDecision),
    Unlimited,
    AmbiguousHeader(HeaderName),
}

impl GateVerdict {
    fn new(finding: VerdictKind) -> GateVerdict {
        GateVerdict { kind: finding, admission: None, warning: None }
    }

    /// What an admitted request holds.
    #[must_use]
    pub fn holding(self, pass: Option<Box<dyn Admission>>) -> GateVerdict {
        GateVerdict { admission: pass, ..self }
    }

    /// Something looks wrong about how the layer is used.
    #[must_use]
    pub fn warning(self, warning: Option<Warning>) -> GateVerdict {
        GateVerdict { warning, ..self }
    }
}

/// What an admitted request holds until its work is over: a charge that can still be settled, or a place
/// among the work in flight.
///
/// Dropping it means that the work is over: the body of the response has ended, or nobody waits for it any
/// more. The charge stands then, because the work was begun.
pub trait Admission: fmt::Debug + Send + Sync {
    /// The head of the response is there. `cost` is the true cost, if the layer's charge function told
    /// it. `Some`: to be waited for before the response goes on.
    fn settle(&mut self, cost: Option<u64>, response: &response::Parts) -> Option<BoxFuture<()>>;

    /// The work was never begun.
    fn give_back(self: Box<Self>);
}
