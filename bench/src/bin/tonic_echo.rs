//! The floor of the gRPC server: tonic, answering every call with one and the same message.
//!
//! `cargo xtask bench doors` starts it as a process of its own, as `bare-hyper` is for HTTP.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::runtime;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::server::{Server, TcpIncoming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use tollgate_bench::envoy::{
    BenchDescriptorStatus, BenchProtoDuration, BenchRateLimit, BenchRateLimitRequest,
    BenchRateLimitResponse, OK,
};
use tollgate_bench::machine;

fn main() -> ExitCode {
    machine::exit_on_sigterm();
    match announce().and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tonic-echo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Binds a free port and announces it on standard output.
fn announce() -> io::Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening grpc {}\nready", listener.local_addr()?);
    Ok(listener)
}

/// Accepts connections until the process is killed, all on the calling thread.
fn serve(listener: TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder().add_service(EchoRateLimitService);
        server.serve_with_incoming(incoming).await.map_err(io::Error::other)
    })
}

/// The service, as tonic's generator would write it.
#[derive(Clone)]
struct EchoRateLimitService;

impl NamedService for EchoRateLimitService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<Request<Body>> for EchoRateLimitService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<BenchRateLimitResponse, BenchRateLimitRequest>::default();
            Ok(Grpc::new(codec).unary(EchoShouldRateLimit, request).await)
        })
    }
}

struct EchoShouldRateLimit;

impl UnaryService<BenchRateLimitRequest> for EchoShouldRateLimit {
    type Response = BenchRateLimitResponse;
    type Future = Ready<Result<tonic::Response<BenchRateLimitResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<BenchRateLimitRequest>) -> Self::Future {
        let descriptors = request.into_inner().descriptors;
        let statuses = descriptors.iter().map(|_| status()).collect();
        ready(Ok(tonic::Response::new(BenchRateLimitResponse {
            overall_code: OK,
            statuses,
            response_headers_to_add: Vec::new(),
        })))
    }
}

/// A status as long as Tollgate's.
fn status() -> BenchDescriptorStatus {
    let current_limit =
        BenchRateLimit { requests_per_unit: 1_000_000, unit: 1, name: "per-address".into() };
    BenchDescriptorStatus {
        code: OK,
        current_limit: Some(current_limit),
        limit_remaining: 999_999,
        duration_until_reset: Some(BenchProtoDuration { seconds: 1, nanos: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::traffic::should_rate_limit;
    use tollgate_bench::generator;
    use tollgate_bench::generator::grpc::{GrpcLoadClient, check};
    use tollgate_bench::generator::requests::EncodedRequests;

    #[test]
    fn the_generator_and_a_whole_client_understand_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(|| serve(listener));
        let messages = EncodedRequests::generate(1, |callers| should_rate_limit(callers[0]));
        let answer = check(address, messages.get(0)).unwrap();
        assert_eq!((answer.overall_code, answer.statuses), (OK, vec![status()]));
        let sample =
            generator::measure_briefly(address, |index| GrpcLoadClient::new(&messages, 16, index))
                .unwrap();
        assert!(sample.requests_per_s > 0.0);

        // Not a message: tonic answers with a status and no message.
        let broken = EncodedRequests::generate(1, |_| b"\0\0\0\0\x01\xff");
        assert!(check(address, broken.get(0)).unwrap_err().contains("grpc-status"));
        let problem =
            generator::measure_briefly(address, |index| GrpcLoadClient::new(&broken, 1, index))
                .unwrap_err();
        assert!(problem.contains("without a message"), "{problem}");
    }
}
