//! `Gate`: the interface through which the layer gets its decisions.
//!
//! There are two gates: [`KeyedGate`](crate::KeyedGate), with limits of your own over a limiter in this process, and
//! a whole `Gatekeeper`, with the feature `rules`. A gate of your own has one method to write.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arrayvec::ArrayVec;
use http::{Extensions, HeaderName, Request, request, response};
use tollgate::headers::{Dialect, PolicyName, RateLimitReply};
use tollgate::{DecidedBy, Wait};

use crate::body_host::{BodyReadEnd, BodyReadFailure};
use crate::decision::{GateDecision, LayerNumbers};
use crate::inner_fields::InnerLimitFields;
use crate::patience::stated_patience;
use crate::refusal::CustomRefusal;
use crate::warning::Warning;

/// A boxed future, for gates that have to wait.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A function that sleeps, such as one around `tokio::time::sleep`.
pub type SleepFn = dyn Fn(Duration) -> BoxFuture<()> + Send + Sync;

/// A source of decisions for the layer.
pub trait Gate: Send + Sync + 'static {
    /// Decides about a request, at once or later. The layer sets no deadline, so a gate that waits needs one of its
    /// own. Such a gate [takes](GateRequest::take) the request and returns it with the verdict.
    fn ask(&self, question: &mut GateRequest) -> GateAnswer;

    /// Decides about a request of a layer that can wait: the gate may let it wait its turn with the layer's function
    /// `sleep`, at most for the request's [`patience`](GateRequest::patience). A client that leaves drops the answer.
    fn ask_in_turn(&self, question: &mut GateRequest, sleep: &Arc<SleepFn>) -> GateAnswer {
        let _ = sleep;
        self.ask(question)
    }

    /// Returns true if the decision about some requests depends on their body; see
    /// [`RequestBodyLayer`](crate::RequestBodyLayer).
    fn reads_bodies(&self) -> bool {
        false
    }

    /// Looks at a request before its body is read, if the gate [reads bodies](Gate::reads_bodies).
    fn body_demand(&self, question: &mut GateRequest) -> BodyDemandAnswer {
        let _ = question;
        BodyDemandAnswer::Now(BodyDemand::None)
    }

    /// Returns true if an admission may have a [pacer](Admission::body_pacer). The bodies of requests are paced
    /// behind a [`RequestBodyLayer`](crate::RequestBodyLayer).
    fn paces_bodies(&self) -> bool {
        false
    }
}

/// An answer that is ready, or one to wait for.
pub enum GateAnswer {
    /// The verdict is ready.
    Now(GateVerdict),
    /// The verdict needs a wait, for example for a remote store.
    Later(BoxFuture<(GateRequest, GateVerdict)>),
}

impl GateAnswer {
    /// Starts `ask` and polls it once: over a store in this process the verdict is ready then.
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

/// The part that the body of a request plays in its decision.
pub enum BodyDemand {
    /// The body does not matter.
    None,
    /// The body has to be read before the request is decided.
    Read(Box<dyn RequestBodyReader>),
    /// The request is refused whatever its body says.
    Refuse(GateVerdict),
}

/// A demand that is ready, or one to wait for.
pub enum BodyDemandAnswer {
    /// The demand is ready.
    Now(BodyDemand),
    /// The demand needs a wait, for example for a remote store.
    Later(BoxFuture<(GateRequest, BodyDemand)>),
}

impl fmt::Debug for BodyDemandAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyDemandAnswer::Now(_) => "Now",
            BodyDemandAnswer::Later(_) => "Later",
        })
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

/// A request and what the layer knows about it.
#[derive(Debug)]
#[non_exhaustive]
pub struct GateRequest {
    /// The request without its body.
    pub head: request::Parts,
    /// The address of the connection's peer, if the layer finds it.
    pub peer: Option<IpAddr>,
    /// The cost given by the layer's cost function; `None` leaves the cost to the gate.
    pub cost: Option<u64>,
    /// The longest wait that the layer accepts, if it can wait; see [`GateRequest::patience`].
    pub max_wait: Option<Duration>,
    /// True if the layer may report another cost when the response is ready.
    pub settles: bool,
    /// True if the gate should look for signs of misuse, as it does for the first requests of a layer.
    pub watching: bool,
    pub(crate) on_wait: Option<WaitFn>,
    pub(crate) dialects: Option<LayerDialects>,
    pub(crate) layers: LayerNumbers,
    pub(crate) report: ReportOptions,
}

/// A function that is called when a request begins to wait.
pub(crate) type WaitFn = fn(&request::Parts);

/// The options of a layer that a decision carries to the response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportOptions {
    /// True if the layer puts the decision into the extensions of the response.
    pub(crate) in_response: bool,
    /// The treatment of fields that the inner service wrote.
    pub(crate) inner_fields: InnerLimitFields,
}

/// The header dialects that the user chose for a layer, each once. A copy for each request is cheaper than an `Arc`,
/// whose count all processors would write to.
pub(crate) type LayerDialects = ArrayVec<Dialect, { Dialect::ALL.len() }>;

/// A gate's decision, and how to report it to clients.
#[derive(Clone, Copy, Debug)]
pub struct DecisionDetails<'a> {
    /// The values for the client: limits, units left, waits.
    pub reply: &'a RateLimitReply<'a>,
    /// The header dialects to use if the layer has none of its own.
    pub dialects: &'a [Dialect],
    /// The part that decided, such as the table in this process or a shared store.
    pub decided_by: DecidedBy,
    /// The delay of an admitted request; at most the request's `max_wait`.
    pub delay: Wait,
    /// The binding limit's name in header fields.
    pub policy: Option<&'a PolicyName>,
    /// The name of the binding limit's rule.
    pub rule: Option<&'a str>,
    /// The response to a refused client, instead of a problem document.
    pub refusal: Option<&'a CustomRefusal>,
    /// Soft limits that are exceeded: they warn and do not refuse.
    pub warnings: &'a [&'a PolicyName],
}

impl GateRequest {
    /// Moves the request out and leaves an empty one in its place, for a gate that has to wait.
    #[must_use]
    pub fn take(&mut self) -> GateRequest {
        let empty = GateRequest { head: Request::new(()).into_parts().0, dialects: None, ..*self };
        std::mem::replace(self, empty)
    }

    /// The longest wait that both the layer and the client accept; `None` if the layer cannot wait. A client states its
    /// patience with `Prefer: wait`, `grpc-timeout` or `x-envoy-expected-rq-timeout-ms`.
    pub fn patience(&self) -> Option<Duration> {
        let max = self.max_wait?;
        Some(stated_patience(&self.head.headers).map_or(max, |stated| stated.min(max)))
    }

    /// Tells the server that the request begins to wait for its turn. A gate that queues requests calls it once for each
    /// of them; the layer itself does so for requests that it delays.
    pub fn tell_wait(&self) {
        self.on_wait.into_iter().for_each(|on_wait| on_wait(&self.head));
    }

    /// A verdict with a decision.
    pub fn decided(&self, said: &DecisionDetails<'_>) -> GateVerdict {
        let dialects = self.dialects.as_deref().unwrap_or(said.dialects);
        let decision = GateDecision::new(said, dialects, (self.layers, self.report));
        GateVerdict::new(VerdictKind::Decided(decision))
    }

    /// The verdict for a request to which no limit applies.
    pub fn unlimited(&self) -> GateVerdict {
        GateVerdict::new(VerdictKind::Unlimited)
    }

    /// The verdict for a request whose identifying header field appears twice with different values. Either value
    /// may be forged, so the layer answers with 400.
    pub fn ambiguous_header(&self, header: HeaderName) -> GateVerdict {
        GateVerdict::new(VerdictKind::AmbiguousHeader(header))
    }
}

/// The result of asking a gate about a request.
pub struct GateVerdict {
    pub(crate) kind: VerdictKind,
    pub(crate) admission: Option<Box<dyn Admission>>,
    pub(crate) warning: Option<Warning>,
    pub(crate) departure: Option<BoxFuture<()>>,
}

#[derive(Debug)]
pub(crate) enum VerdictKind {
    Decided(GateDecision),
    Unlimited,
    AmbiguousHeader(HeaderName),
}

impl fmt::Debug for GateVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateVerdict")
            .field("kind", &self.kind)
            .field("admission", &self.admission)
            .field("warning", &self.warning)
            .finish_non_exhaustive()
    }
}

impl GateVerdict {
    fn new(finding: VerdictKind) -> GateVerdict {
        GateVerdict { kind: finding, admission: None, warning: None, departure: None }
    }

    /// Adds the wait of an admitted request before its work begins, instead of a sleep for the delay of its decision. A
    /// client that leaves drops it.
    #[must_use]
    pub fn departing(self, departure: Option<BoxFuture<()>>) -> GateVerdict {
        GateVerdict { departure, ..self }
    }

    /// Adds what an admitted request holds until its work is over.
    #[must_use]
    pub fn holding(self, pass: Option<Box<dyn Admission>>) -> GateVerdict {
        GateVerdict { admission: pass, ..self }
    }

    /// Adds a warning about how the layer is used.
    #[must_use]
    pub fn warning(self, warning: Option<Warning>) -> GateVerdict {
        GateVerdict { warning, ..self }
    }
}

/// The hold of an admitted request until its work is over: a charge that can still be settled, or a slot of a
/// concurrency limit.
///
/// Dropping it means that the work is over: the body of the response has ended, or the client has
/// disconnected. The charge stands then, because the work was begun.
pub trait Admission: fmt::Debug + Send + Sync {
    /// Returns true if a number in the body of the response decides the cost. The layer then asks the inner service
    /// for a body that is not compressed.
    fn reads_response(&self) -> bool {
        false
    }

    /// Notes that the work begins now: all waiting is over.
    fn begin(&mut self) {}

    /// Notes that a client that leaves from now on has to pay: the work began after a wait, or some of the request may have been
    /// sent on, as its [`SendMark`](crate::SendMark) says.
    fn note_sent(&mut self) {}

    /// Settles the charge when the head of the response is ready. The layer awaits the returned future before it
    /// passes the response on.
    fn settle(&mut self, response: &AdmittedResponse<'_>) -> Option<BoxFuture<()>>;

    /// Adds what the server has to know about a connection that becomes a tunnel to the extensions of its response.
    fn describe_tunnel(&mut self, extensions: &mut Extensions) {
        let _ = extensions;
    }

    /// Returns true if the cost is in the body, so that the layer shows it: [`see`](Admission::see) and
    /// [`end_body`](Admission::end_body) are called only then.
    fn wants_body(&self) -> bool {
        false
    }

    /// Sees the next bytes of the body, which are on their way to the client.
    fn see(&mut self, bytes: &[u8]) {
        let _ = bytes;
    }

    /// Counts bytes of the body that could not be shown.
    fn skip(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Settles the charge at the end of the body. `is_complete` is false if the client or the inner service has
    /// gone before the end. The end of the body waits for the returned future.
    fn end_body(&mut self, is_complete: bool) -> Option<BoxFuture<()>> {
        let _ = is_complete;
        None
    }

    /// The pacer of the bodies of the request and its response, if their bytes are charged.
    fn body_pacer(&self) -> Option<Arc<dyn BodyPacer>> {
        None
    }

    /// The pacer of the body of the request alone.
    fn request_pacer(&self) -> Option<Arc<dyn BodyPacer>> {
        self.body_pacer()
    }

    /// Refunds the charge, because the work was never begun. Returns the rest of the refund, if it has to wait.
    fn give_back(self: Box<Self>) -> Option<BoxFuture<()>>;
}

/// The head of the response to an admitted request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AdmittedResponse<'a> {
    /// The head.
    pub head: &'a response::Parts,
    /// The true cost, if the layer's charge function found it.
    pub cost: Option<u64>,
    /// True if the connection becomes a tunnel: after a 101, or a 2xx to CONNECT.
    pub is_tunnel: bool,
}

/// Reads the body of a request before the gate decides about it, for a cost that is estimated by it.
pub trait RequestBodyReader: Send {
    /// Reads the next bytes of the body.
    fn feed(&mut self, bytes: &[u8]);

    /// Returns true if the rest of the body changes nothing.
    fn needs_no_more(&self) -> bool {
        false
    }

    /// Ends the body, and puts the findings into the extensions of the request, where the gate finds them. `Err` refuses the
    /// request.
    fn finish(
        self: Box<Self>,
        end: BodyReadEnd,
        extensions: &mut Extensions,
    ) -> Result<(), BodyReadFailure>;
}

/// Charges the pieces of the bodies of one request as they pass.
pub trait BodyPacer: fmt::Debug + Send + Sync {
    /// The most bytes of one piece: longer ones are split.
    fn piece_bytes_max(&self) -> u64;

    /// Charges the next piece, before it passes. If `can_wait` is false, it passes at once.
    fn charge(self: Arc<Self>, bytes: u64, can_wait: bool) -> PieceAnswer;

    /// Ends the body of a request. `is_complete` is false if the rest of it never arrived. Returns the settlement, if it has
    /// to wait.
    fn end_request(self: Arc<Self>, is_complete: bool) -> Option<BoxFuture<()>> {
        let _ = is_complete;
        None
    }
}

/// The answer of a pacer that is ready, or one to wait for.
pub enum PieceAnswer {
    /// The turn is known.
    Now(PieceTurn),
    /// The turn needs a wait, for example for a remote store.
    Later(BoxFuture<PieceTurn>),
}

impl fmt::Debug for PieceAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PieceAnswer::Now(_) => "Now",
            PieceAnswer::Later(_) => "Later",
        })
    }
}

/// The turn of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceTurn {
    /// The piece is charged, and passes after this wait.
    PassAfter(Wait),
    /// The piece is not charged, because others are ahead: ask again after this wait.
    AskAgainAfter(Wait),
}
