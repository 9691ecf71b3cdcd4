//! tonic: a refusal is a status that gRPC clients know, and calls that pass are untouched.

use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{listen, run};

#[test]
fn the_example_refuses_with_resource_exhausted() {
    run(async {
        let (listener, address) = listen().await;
        tokio::spawn(crate::tonic_example::serve(listener));
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
