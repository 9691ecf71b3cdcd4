//! tonic: a refusal is a status that gRPC clients know, and calls that pass are untouched.

use std::sync::Arc;

use tollgate::{Limit, Limiter};
use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer, charge};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::loopback::client::{listen, run};

#[test]
fn the_example_refuses_with_resource_exhausted() {
    run(async {
        let (listener, address) = listen().await;
        tokio::spawn(crate::loopback::tonic_example::serve(listener));
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        let mut client = HealthClient::new(channel.connect().await.expect("a connection"));
        // Ten pass at once and one each 100 ms after that: on a slow machine some more.
        let mut passed = 0;
        let refused = loop {
            match client.check(HealthCheckRequest::default()).await {
                Ok(answer) => {
                    passed += 1;
                    assert!(answer.metadata().contains_key("ratelimit"), "{answer:?}");
                    assert_eq!(answer.into_inner().status, 1, "serving");
                }
                Err(status) => break status,
            }
        };
        assert!(passed >= 10, "{passed}");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.message(), "Rate limit exceeded. Retry in 1 s.");
        let metadata =
            |name: &str| refused.metadata().get(name).and_then(|text| text.to_str().ok());
        let pushback = metadata("grpc-retry-pushback-ms").and_then(|text| text.parse().ok());
        assert!(pushback.is_some_and(|ms: u32| (1..=100).contains(&ms)), "{pushback:?}");
        assert_eq!(metadata("retry-after"), Some("1"));
        // google.rpc.Status, with the message first and a RetryInfo in it.
        let details = refused.details();
        assert!(details.starts_with(b"\x08\x08\x12\x22Rate limit exceeded"), "{details:?}");
        let name = b"google.rpc.RetryInfo";
        assert!(details.windows(name.len()).any(|part| part == name), "{details:?}");
    });
}

#[test]
fn calls_that_fail_are_charged_and_others_are_not() {
    run(async {
        let (listener, address) = listen().await;
        let guesses = Limit::per_hour(2).burst(2).name("guesses").build().expect("a limit");
        let gate =
            KeyedGate::new(Arc::new(Limiter::with_capacity(100)), [guesses]).expect("a gate");
        let layer = RateLimitLayer::new(gate.key(KeyFrom::global())).charge(charge::only_failures);
        let (_, health) = tonic_health::server::health_reporter();
        let guarded = InterceptedService::new(health, |request: Request<()>| {
            match request.metadata().get("password") {
                Some(password) if password == "right" => Ok(request),
                _ => Err(Status::unauthenticated("the password is wrong")),
            }
        });
        let server = Server::builder().layer(layer).add_service(guarded);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        let mut client = HealthClient::new(channel.connect().await.expect("a connection"));
        for (password, want) in [
            ("right", Code::Ok),
            ("right", Code::Ok),
            ("right", Code::Ok),
            ("wrong", Code::Unauthenticated),
            ("right", Code::Ok),
            ("wrong", Code::Unauthenticated),
            ("right", Code::ResourceExhausted),
        ] {
            let mut request = Request::new(HealthCheckRequest::default());
            request.metadata_mut().insert("password", password.parse().expect("a word"));
            let code = client.check(request).await.err().map_or(Code::Ok, |status| status.code());
            assert_eq!(code, want, "{password}");
        }
    });
}
