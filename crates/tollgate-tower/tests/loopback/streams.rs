//! Work that goes on while a body is sent, under rules.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http_body::Frame;
use tollgate_rules::{Gatekeeper, Source, compile};
use tollgate_tower::RateLimitLayer;

use crate::loopback::axum_routes::serve;
use crate::loopback::client::{LoopbackClient, request, run};

/// A body that never ends.
struct EndlessBody;

impl http_body::Body for EndlessBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

#[test]
fn work_counts_until_its_client_leaves() {
    run(async {
        let text = "rules: [{ name: w, key: '{ip}', limits: [1000000/second], concurrency: 1 }]";
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.expect("rules");
        let gatekeeper = Arc::new(Gatekeeper::in_memory(rules, 100));
        let layer = RateLimitLayer::new(Arc::clone(&gatekeeper)).peer(|head| {
            let info = head.extensions.get::<ConnectInfo<SocketAddr>>();
            info.map(|info| info.0.ip())
        });
        let app = Router::new()
            .route("/endless", get(|| async { Body::new(EndlessBody) }))
            .route("/", get(|| async { "hello" }))
            .layer(layer);
        let address = serve(app).await;
        let mut first = LoopbackClient::connect(address).await;
        let response = first.begin(request("GET", "/endless", "")).await;
        assert_eq!(response.status(), 200);
        let mut second = LoopbackClient::connect(address).await;
        let busy = second.get("/").await;
        assert_eq!(busy.status(), 429);
        assert!(busy.body().contains("work is going on"), "{}", busy.body());
        drop((first, response));
        // The server notices in its own time; the test's deadline bounds it.
        while second.get("/").await.status() != 200 {
            tokio::task::yield_now().await;
        }
        assert_eq!(gatekeeper.stats().reservations, 0);
    });
}
