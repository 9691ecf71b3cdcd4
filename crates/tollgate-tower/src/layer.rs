//! `RateLimitLayer`: the layer and all of its options.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{Method, Response, request, response};
use tollgate::headers::Dialect;
use tower_layer::Layer;

use crate::body_host::{BodyReadFailure, RequestBodyHost};
use crate::charge::ChargeFn;
use crate::decision::GateDecision;
use crate::future::RoomFuture;
use crate::gate::{
    BodyDemandAnswer, BoxFuture, Gate, GateAnswer, GateRequest, LayerDialects, ReportOptions,
    SleepFn, WaitFn,
};
use crate::inner_fields::InnerLimitFields;
use crate::refusal::{self, RefusalFn, RefusedRequest};
use crate::request_body::RequestBodyLayer;
use crate::service::RateLimit;
use crate::warning::{self, MisuseWatch, Warning};

/// Puts a gate in front of a service. Clones of the layer share the gate, and so do all services that it makes.
///
/// Put it on the outermost router: inside a router that is nested with axum's `.nest("/api", …)`, the layer sees
/// paths without `/api`. Put a CORS layer around it, so that web pages can read refusals.
///
/// ```
/// use std::sync::Arc;
/// use http::{Method, Response, StatusCode};
/// use tollgate::headers::Dialect;
/// use tollgate::{Limit, Limiter};
/// use tollgate_tower::{KeyedGate, RateLimitLayer};
///
/// let limit = Limit::per_minute(60).name("api").build()?;
/// let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(100_000)), [limit])?;
/// let layer = RateLimitLayer::new(gate)
///     .cost(|head| if head.method == Method::POST { 10 } else { 1 })
///     .exempt(|head| head.uri.path() == "/health")
///     .headers(&[Dialect::Draft])
///     .refusal(|refused| {
///         let mut response = Response::new("slow down".into());
///         *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
///         response
///     });
/// # drop(layer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    config: Arc<LayerConfig>,
}

/// The address of the connection's peer, for programs that serve connections by hand: put it into the extensions
/// of each request. The layer also finds a [`SocketAddr`] there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub IpAddr);

/// A function that runs a future to its end, such as `tokio::spawn`.
type BackgroundFn = dyn Fn(BoxFuture<()>) + Send + Sync;

type HeadFn<T> = dyn Fn(&request::Parts) -> T + Send + Sync;

/// The options of a layer. State that differs between requests is not kept here.
#[derive(Clone)]
pub(crate) struct LayerConfig {
    gate: Arc<dyn Gate>,
    peer: Arc<HeadFn<Option<IpAddr>>>,
    cost: Option<Arc<HeadFn<u64>>>,
    exempt: Option<Arc<HeadFn<bool>>>,
    limits_preflights: bool,
    pub(crate) charge: Option<Arc<ChargeFn>>,
    pub(crate) refusal: Option<Arc<RefusalFn>>,
    dialects: Option<LayerDialects>,
    wait: Option<DelayOptions>,
    on_wait: Option<WaitFn>,
    report: ReportOptions,
    background: Option<Arc<BackgroundFn>>,
    body_host: Option<Arc<dyn RequestBodyHost>>,
    on_warning: Arc<dyn Fn(Warning) + Send + Sync>,
    watch: Arc<MisuseWatch>,
    number: u32,
}

/// The options for delaying requests.
#[derive(Clone)]
struct DelayOptions {
    max: Duration,
    sleep: Arc<SleepFn>,
}

impl RateLimitLayer {
    /// Makes a layer that asks `gate` about each request.
    pub fn new(gate: impl Gate) -> RateLimitLayer {
        // Numbers begin with 1: 0 stands for no layer.
        static LAYERS: AtomicU32 = AtomicU32::new(1);
        let config = LayerConfig {
            gate: Arc::new(gate),
            peer: Arc::new(peer_of),
            cost: None,
            exempt: None,
            limits_preflights: false,
            charge: None,
            refusal: None,
            dialects: None,
            wait: None,
            on_wait: None,
            report: ReportOptions::default(),
            background: None,
            body_host: None,
            on_warning: Arc::new(warning::write),
            watch: Arc::default(),
            number: LAYERS.fetch_add(1, Ordering::Relaxed),
        };
        RateLimitLayer { config: Arc::new(config) }
    }

    fn with(mut self, change: impl FnOnce(&mut LayerConfig)) -> RateLimitLayer {
        change(Arc::make_mut(&mut self.config));
        self
    }

    /// Sets the function that finds the address of the connection's peer. By default it is a [`PeerAddr`] or a
    /// [`SocketAddr`] in the request's extensions. With axum:
    /// `.peer(|head| head.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip()))`; with
    /// tonic the same with `TcpConnectInfo`.
    #[must_use]
    pub fn peer(
        self,
        peer: impl Fn(&request::Parts) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.peer = Arc::new(peer))
    }

    /// Sets the function that computes the cost of a request, which overrides 1 or the cost in the rules. A cost of 0
    /// checks without charging.
    #[must_use]
    pub fn cost(
        self,
        cost: impl Fn(&request::Parts) -> u64 + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// Exempts requests from limits, such as health checks.
    #[must_use]
    pub fn exempt(
        self,
        exempt: impl Fn(&request::Parts) -> bool + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.exempt = Some(Arc::new(exempt)))
    }

    /// Counts CORS preflights like any other request. By default they pass: browsers send them on their own, and a
    /// refused preflight looks like a missing permission. A gatekeeper whose rules say `preflights: pass` lets them by
    /// nevertheless, except past a block, a ban or a rule that names OPTIONS.
    #[must_use]
    pub fn limit_preflights(self) -> RateLimitLayer {
        self.with(|config| config.limits_preflights = true)
    }

    /// Sets the function that finds the true cost of a request in its response; `None` keeps the first charge. See
    /// [`charge`](crate::charge).
    #[must_use]
    pub fn charge(
        self,
        charge: impl Fn(&response::Parts) -> Option<u64> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.charge = Some(Arc::new(charge)))
    }

    /// Sets the function that makes the response to a refused request. The layer adds the header fields of the
    /// limits, `Retry-After` and `Cache-Control` if the response does not have them.
    #[must_use]
    pub fn refusal(
        self,
        refusal: impl Fn(&RefusedRequest<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.refusal = Some(Arc::new(refusal)))
    }

    /// Sets the header dialects that report limits to clients. With an empty list the only fields are `Retry-After`
    /// and `Cache-Control` of refusals. The default is `X-RateLimit-*` and the draft's fields, or the dialects in
    /// the rules.
    #[must_use]
    pub fn headers(self, dialects: &[Dialect]) -> RateLimitLayer {
        let mut chosen = LayerDialects::new();
        for dialect in dialects {
            if !chosen.contains(dialect) {
                chosen.push(*dialect);
            }
        }
        self.with(|config| config.dialects = Some(chosen))
    }

    /// Lets requests wait, for at most `max`: delays them where a limit with a queue holds them back, and queues them where a
    /// rule with `fair` shares a limit among callers. A longer wait is a refusal, and so is every wait without this
    /// option. `sleep` is the runtime's, such as `tokio::time::sleep`.
    ///
    /// A client that states how long it waits is not kept waiting longer: by `Prefer: wait=5`, `grpc-timeout` or
    /// `x-envoy-expected-rq-timeout-ms`.
    ///
    /// A waiting request keeps the inner service that was found ready for it, and with it a slot of any concurrency
    /// limit of that service. The queue's capacity bounds the number of waiting requests for each key. A client that
    /// disconnects before the inner service is called gets its units back.
    #[must_use]
    pub fn wait<F>(
        self,
        max: Duration,
        sleep: impl Fn(Duration) -> F + Send + Sync + 'static,
    ) -> RateLimitLayer
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let sleep: Arc<SleepFn> = Arc::new(move |duration| Box::pin(sleep(duration)));
        self.with(|config| config.wait = Some(DelayOptions { max, sleep }))
    }

    /// Sets the function that is called when a request begins to wait for its turn or its body, so that the server can lend
    /// out meanwhile what it keeps for requests in progress. Afterwards [`RequestBodyHost::resume`] may make it wait for room. A
    /// plain function, because a copy goes with each request.
    #[must_use]
    pub fn on_wait(self, on_wait: fn(&request::Parts)) -> RateLimitLayer {
        self.with(|config| config.on_wait = Some(on_wait))
    }

    /// Sets the treatment of rate limit header fields that the inner service wrote. By default they stay. An
    /// [`InnerLimitFields`] in the extensions of a response counts for that response.
    #[must_use]
    pub fn inner_fields(self, fields: InnerLimitFields) -> RateLimitLayer {
        self.with(|config| config.report.inner_fields = fields)
    }

    /// Sets the function that ends settlements over a shared store whose client has gone, such as
    /// `|future| { tokio::spawn(future); }`. Without it, such a settlement is lost if the store has not got it at
    /// once, and the first charge stands.
    #[must_use]
    pub fn background(
        self,
        background: impl Fn(BoxFuture<()>) + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.background = Some(Arc::new(background)))
    }

    /// Sets the server's part in reading bodies before the decision and in making room for requests that have waited. Without
    /// it, each body takes up to 256 KiB, the server has to bound its time, and a body that does not arrive is answered with 408.
    #[must_use]
    pub fn body_host(self, host: impl RequestBodyHost + 'static) -> RateLimitLayer {
        self.with(|config| config.body_host = Some(Arc::new(host)))
    }

    /// A layer to be put around this one: it reads the bodies of requests whose cost is estimated by them, and charges and
    /// paces those under `cost: bytes`. Without it, only the bodies of responses are charged by their bytes.
    pub fn request_body(&self) -> RequestBodyLayer {
        RequestBodyLayer::new(Arc::clone(&self.config))
    }

    /// Puts the [`GateDecision`] into the extensions of every response, for services around the layer, such as an
    /// access log. By default only refusals have it.
    #[must_use]
    pub fn decision_in_response(self) -> RateLimitLayer {
        self.with(|config| config.report.in_response = true)
    }

    /// Sets the function that is called when the layer seems to be misused, once for each [`Warning`]. By default
    /// warnings are written to standard error.
    #[must_use]
    pub fn on_warning(
        self,
        on_warning: impl Fn(Warning) + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|config| config.on_warning = Arc::new(on_warning))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.config))
    }
}

impl LayerConfig {
    /// Returns true if a request passes without asking the gate.
    pub(crate) fn exempts(&self, head: &request::Parts) -> bool {
        let preflight = !self.limits_preflights && is_preflight(head);
        preflight || self.exempt.as_ref().is_some_and(|exempt| exempt(head))
    }

    pub(crate) fn ask(&self, question: &mut GateRequest) -> GateAnswer {
        match &self.wait {
            Some(wait) => self.gate.ask_in_turn(question, &wait.sleep),
            None => self.gate.ask(question),
        }
    }

    /// Returns true if the decision about some requests depends on their body.
    pub(crate) fn reads_bodies(&self) -> bool {
        self.gate.reads_bodies()
    }

    /// Looks at a request before its body is read.
    pub(crate) fn body_demand(&self, question: &mut GateRequest) -> BodyDemandAnswer {
        self.gate.body_demand(question)
    }

    /// The server's part in reading bodies.
    pub(crate) fn host(&self) -> Option<&dyn RequestBodyHost> {
        self.body_host.as_deref()
    }

    /// Asks the server for room for a request that may have let others in while it waited.
    pub(crate) fn resume(&self, head: &request::Parts) -> Option<RoomFuture> {
        self.host()?.resume(head)
    }

    /// The response to a request whose body was not read.
    pub(crate) fn unread(&self, head: &request::Parts, reason: BodyReadFailure) -> Response<Bytes> {
        match self.host() {
            Some(host) => host.respond(head, reason),
            None => refusal::unread(reason),
        }
    }

    /// Returns true if the bodies of requests may have to be paced.
    pub(crate) fn paces_bodies(&self) -> bool {
        self.gate.paces_bodies()
    }

    /// Returns true if the layer can delay requests and bodies.
    pub(crate) fn can_sleep(&self) -> bool {
        self.wait.is_some()
    }

    /// Ends a settlement that nothing waits for.
    pub(crate) fn run_in_background(&self, future: BoxFuture<()>) {
        if let Some(background) = &self.background {
            background(future);
        }
    }

    /// The request as the gate gets it.
    pub(crate) fn gate_request(&self, head: request::Parts) -> GateRequest {
        let layers = head.extensions.get::<GateDecision>().map(GateDecision::layers);
        let layers = layers.unwrap_or_default();
        if layers.contains(self.number) {
            self.warn(Warning::AppliedTwice);
        }
        GateRequest {
            peer: (self.peer)(&head),
            cost: self.cost.as_ref().map(|cost| cost(&head)),
            max_wait: self.wait.as_ref().map(|wait| wait.max),
            on_wait: self.on_wait,
            settles: self.charge.is_some(),
            watching: self.watch.watches(),
            dialects: self.dialects.clone(),
            layers: layers.with(self.number),
            report: self.report,
            head,
        }
    }

    pub(crate) fn warn(&self, warning: Warning) {
        if self.watch.is_first_report(warning) {
            (self.on_warning)(warning);
        }
    }

    /// Tells the server that a request begins to wait.
    pub(crate) fn tell_wait(&self, head: &request::Parts) {
        self.on_wait.into_iter().for_each(|on_wait| on_wait(head));
    }

    /// Starts a sleep; `None` if the layer does not delay requests.
    pub(crate) fn sleep(&self, duration: Duration) -> Option<BoxFuture<()>> {
        self.wait.as_ref().map(|wait| (wait.sleep)(duration))
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Marks a request that has a body, in its extensions: browsers send no body with a CORS preflight, so it is none. For servers
/// that know of a body without `Content-Length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriesBody;

/// Returns true for a CORS preflight request without a body, as browsers send it.
#[cfg(feature = "rules")]
pub(crate) fn is_bodiless_preflight(head: &request::Parts) -> bool {
    let has_length =
        head.headers.get(http::header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    is_preflight(head) && !has_length && head.extensions.get::<CarriesBody>().is_none()
}

/// Returns true for a CORS preflight request.
fn is_preflight(head: &request::Parts) -> bool {
    let has = |name| head.headers.contains_key(name);
    head.method == Method::OPTIONS && has(ORIGIN) && has(ACCESS_CONTROL_REQUEST_METHOD)
}

fn peer_of(head: &request::Parts) -> Option<IpAddr> {
    let given = head.extensions.get::<PeerAddr>().map(|peer| peer.0);
    given.or_else(|| head.extensions.get::<SocketAddr>().map(SocketAddr::ip))
}
