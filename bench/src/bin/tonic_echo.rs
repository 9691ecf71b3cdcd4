//! The floor of the gRPC server: tonic, answering every call with one and the same message.
//!
//! `cargo xtask bench doors` starts it as a process of its own, as `bare-hyper` is for HTTP.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::runtime;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::{Server, TcpIncoming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use tollgate_bench::envoy::{
    DescriptorStatus, Duration, OK, RateLimit, RateLimitRequest, RateLimitResponse,
};

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tonic-echo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes connections for ever, all on the thread that calls.
fn serve() -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("listening grpc {}\nready", listener.local_addr()?);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(RateLimitService);
        server.serve_with_incoming(incoming).await.map_err(io::Error::other)
    })
}

/// The service, as tonic's generator would write it.
#[derive(Clone)]
struct RateLimitService;

impl NamedService for RateLimitService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<Request<Body>> for RateLimitService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            Ok(Grpc::new(codec).unary(ShouldRateLimit, request).await)
        })
    }
}

struct ShouldRateLimit;

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Ready<Result<tonic::Response<RateLimitResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let descriptors = request.into_inner().descriptors;
        let statuses = descriptors.iter().map(|_| status()).collect();
        ready(Ok(tonic::Response::new(RateLimitResponse {
            overall_code: OK,
            statuses,
            response_headers_to_add: Vec::new(),
        })))
    }
}

/// As long as Tollgate's.
fn status() -> DescriptorStatus {
    let current_limit =
        RateLimit { requests_per_unit: 1_000_000, unit: 1, name: "per-address".into() };
    DescriptorStatus {
        code: OK,
        current_limit: Some(current_limit),
        limit_remaining: 999_999,
        duration_until_reset: Some(Duration { seconds: 1, nanos: 0 }),
    }
}
