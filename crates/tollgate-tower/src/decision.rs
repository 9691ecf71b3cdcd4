//! `GateDecision`: the decision about a request, for the handlers behind the layer.

use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayString;
use bytes::Bytes;
use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate::headers::{Dialect, FieldText, PolicyName, RateLimitField, RateLimitFields};
use tollgate::{DecidedBy, Micros, Refusal, Wait};

use crate::gate::{DecisionDetails, ReportOptions};
use crate::inner_fields::InnerLimitFields;
use crate::refusal::CustomRefusal;

/// The decision about a request. The layer puts it into the extensions of the request before it calls the
/// inner service.
///
/// A request has no decision if no limit applies to it, or only limits in shadow mode or soft limits that are
/// not exceeded. Refusals carry it in the extensions of the response; other responses do if
/// [`decision_in_response`](crate::RateLimitLayer::decision_in_response) is set.
///
/// ```
/// use tollgate_tower::GateDecision;
///
/// fn is_nearly_out(request: &http::Request<()>) -> bool {
///     let decision = request.extensions().get::<GateDecision>();
///     decision.is_some_and(|decision| decision.remaining() < 10)
/// }
/// # assert!(!is_nearly_out(&http::Request::new(())));
/// ```
#[derive(Clone)]
pub struct GateDecision(Arc<GateDecisionInner>);

struct GateDecisionInner {
    decided_by: DecidedBy,
    at: Micros,
    capacity: u64,
    remaining: u64,
    retry_after: Wait,
    reset_after: Wait,
    delay: Wait,
    /// A copy of the name, because an `Arc` would make all processors write to one reference count.
    policy: Option<ArrayString<{ PolicyName::MAX_LEN }>>,
    rule: Option<Box<str>>,
    fields: RateLimitFields,
    /// `None` when allowed. Boxed, because few requests are refused and the decision is copied once.
    refusal: Option<Box<RefusalTexts>>,
    layers: LayerNumbers,
    report: ReportOptions,
}

/// The reason for a refusal, and its texts for clients.
struct RefusalTexts {
    reason: Refusal,
    retry_after_s: Option<u64>,
    /// The problem document.
    problem: Bytes,
    /// The response instead of it.
    custom: Option<CustomRefusal>,
    message: Box<str>,
}

impl RefusalTexts {
    #[cold]
    fn new(said: &DecisionDetails<'_>, reason: Refusal) -> Box<RefusalTexts> {
        let reply = said.reply;
        let problem = reply.problem();
        let message = problem.as_ref().map(|problem| problem.message().to_string());
        Box::new(RefusalTexts {
            reason,
            retry_after_s: reply.retry_after_s(),
            problem: problem.map(|problem| problem.to_string().into()).unwrap_or_default(),
            message: message.unwrap_or_default().into(),
            custom: said.refusal.cloned(),
        })
    }
}

impl GateDecision {
    pub(crate) fn new(
        said: &DecisionDetails<'_>,
        dialects: &[Dialect],
        (layers, report): (LayerNumbers, ReportOptions),
    ) -> GateDecision {
        let reply = said.reply;
        GateDecision(Arc::new(GateDecisionInner {
            decided_by: said.decided_by,
            at: reply.at,
            capacity: reply.capacity,
            remaining: reply.remaining,
            retry_after: reply.retry_after,
            reset_after: reply.reset_after,
            delay: said.delay,
            policy: said.policy.and_then(|name| ArrayString::from(name.as_str()).ok()),
            rule: said.rule.map(Into::into),
            fields: fields(said, dialects),
            refusal: reply.refusal.map(|reason| RefusalTexts::new(said, reason)),
            layers,
            report,
        }))
    }

    /// Returns true if the request may go on to the inner service.
    pub fn allowed(&self) -> bool {
        self.0.refusal.is_none()
    }

    /// The reason for a refusal; `None` when allowed.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal.as_ref().map(|refusal| refusal.reason)
    }

    /// The part that decided, such as the table in this process or a shared store.
    pub fn decided_by(&self) -> DecidedBy {
        self.0.decided_by
    }

    /// The instant of the decision.
    pub fn at(&self) -> Micros {
        self.0.at
    }

    /// The binding limit's capacity; 0 if no enforced limit applied.
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// Whole units left of the binding limit, before the response settles the charge.
    pub fn remaining(&self) -> u64 {
        self.0.remaining
    }

    /// The wait after which the same request is allowed; zero when it is allowed now.
    pub fn retry_after(&self) -> Wait {
        self.0.retry_after
    }

    /// The value of `Retry-After`: whole seconds, at least 1. `None` when allowed, and when no wait helps.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.0.refusal.as_ref()?.retry_after_s
    }

    /// The wait until the binding limit is back at its full capacity.
    pub fn reset_after(&self) -> Wait {
        self.0.reset_after
    }

    /// The delay that a queue imposed on the request.
    pub fn delay(&self) -> Wait {
        self.0.delay
    }

    /// The binding limit's name in header fields, such as `api-1m`.
    pub fn policy(&self) -> Option<&str> {
        self.0.policy.as_deref()
    }

    /// The name of the binding limit's rule, if a gatekeeper decided.
    pub fn rule(&self) -> Option<&str> {
        self.0.rule.as_deref()
    }

    /// The problem document of a refusal, in JSON; empty when allowed.
    pub fn problem(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        self.0.refusal.as_ref().map_or(&NONE, |refusal| &refusal.problem)
    }

    /// The status of the response: 503 for a refusal because the store is unavailable, the status of the rule's own
    /// refusal, 429 for every other refusal, and 200 when allowed.
    pub fn status(&self) -> StatusCode {
        if let Some(custom) = self.custom_refusal() {
            return custom.status;
        }
        match self.refusal() {
            None => StatusCode::OK,
            Some(Refusal::StoreUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
            Some(_) => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The response that the rule gives instead of a problem document.
    pub fn custom_refusal(&self) -> Option<&CustomRefusal> {
        self.0.refusal.as_ref()?.custom.as_ref()
    }

    /// The human-readable sentence of a refusal; empty when allowed.
    pub(crate) fn message(&self) -> &str {
        self.0.refusal.as_ref().map_or("", |refusal| &refusal.message)
    }

    /// The header fields that report the decision to the client.
    pub fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.0.fields.iter()
    }

    /// Adds the header fields of the decision. `replace` says if they overwrite fields that are there already.
    pub(crate) fn write_to(&self, headers: &mut HeaderMap, replace: bool) {
        if self.0.fields.is_empty() {
            return;
        }
        headers.reserve(self.0.fields.len() + FIELDS_ADDED_LATER);
        for (name, value) in self.0.fields.iter() {
            match headers.entry(name) {
                Entry::Vacant(field) => drop(field.insert(value)),
                Entry::Occupied(mut field) if replace => drop(field.insert(value)),
                Entry::Occupied(_) => {}
            }
        }
    }

    pub(crate) fn has_fields(&self) -> bool {
        !self.0.fields.is_empty()
    }

    /// Returns true if the layer puts the decision into the extensions of the response.
    pub(crate) fn is_wanted_in_response(&self) -> bool {
        self.0.report.in_response
    }

    /// Returns true if the response must carry the decision: for the user, or for an outer layer, which
    /// compares it with its own.
    pub(crate) fn is_reported_outside(&self) -> bool {
        self.0.report.in_response || self.0.layers.is_nested()
    }

    /// The treatment of fields that the inner service wrote, unless the response says otherwise.
    pub(crate) fn inner_fields(&self) -> InnerLimitFields {
        self.0.report.inner_fields
    }

    pub(crate) fn layers(&self) -> LayerNumbers {
        self.0.layers
    }

    /// Returns true if this decision leaves the client less room than `other`.
    pub(crate) fn is_tighter_than(&self, other: &GateDecision) -> bool {
        other.allowed() && (!self.allowed() || self.remaining() < other.remaining())
    }
}

/// Room for fields that servers add after the layer, such as `content-length`: without it the map grows twice.
const FIELDS_ADDED_LATER: usize = 2;

fn fields(said: &DecisionDetails<'_>, dialects: &[Dialect]) -> RateLimitFields {
    let mut text = FieldText::default();
    said.reply.for_each_header(dialects, |field, value| {
        text.add(field, |out| value.write_to(out));
    });
    if let [first, others @ ..] = said.warnings {
        text.add(RateLimitField::XWarning, |out| {
            out.extend_from_slice(first.as_str().as_bytes());
            for name in others {
                out.extend_from_slice(b", ");
                out.extend_from_slice(name.as_str().as_bytes());
            }
        });
    }
    text.finish()
}

impl fmt::Debug for GateDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateDecision")
            .field("refusal", &self.refusal())
            .field("policy", &self.0.policy)
            .field("remaining", &self.0.remaining)
            .field("decided_by", &self.0.decided_by)
            .finish_non_exhaustive()
    }
}

/// Numbers of the layers that have decided about a request. Bound: the last four, so a layer that is applied
/// twice with more than three others in between is not detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerNumbers([u32; 4]);

impl LayerNumbers {
    pub(crate) fn contains(self, layer: u32) -> bool {
        self.0.contains(&layer)
    }

    /// Returns true if the last layer has another one around it.
    fn is_nested(self) -> bool {
        self.0[1] != 0
    }

    pub(crate) fn with(self, layer: u32) -> LayerNumbers {
        let [a, b, c, _] = self.0;
        LayerNumbers([layer, a, b, c])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_layers_are_remembered() {
        let four = [1, 2, 3, 4].into_iter().fold(LayerNumbers::default(), LayerNumbers::with);
        assert!((1..=4).all(|layer| four.contains(layer)) && !four.contains(5));
        let five = four.with(5);
        assert!((2..=5).all(|layer| five.contains(layer)) && !five.contains(1));
    }
}
