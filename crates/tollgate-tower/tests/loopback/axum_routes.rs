//! axum: routers, routes, and the example.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tollgate::{Limit, Limiter};
use tollgate_tower::{KeyFrom, KeyedGate, RateLimitLayer};

use crate::loopback::client::{LoopbackClient, listen, request, run};

pub(crate) async fn serve(app: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

#[test]
fn the_example_does_what_it_says() {
    run(async {
        let address =
            serve(crate::loopback::axum_example::app().expect("the example builds")).await;
        let mut client = LoopbackClient::connect(address).await;
        let first = client.get("/").await;
        assert_eq!(first.body(), "hello, you have 19 requests left\n");
        assert_eq!(first.headers()["x-ratelimit-remaining"], "19");
        for (password, want) in [
            ("right", 200),
            ("wrong", 401),
            ("right", 200),
            ("wrong", 401),
            ("wrong", 401),
            ("wrong", 401),
            ("wrong", 401),
            ("wrong", 429),
            ("right", 429),
        ] {
            let response = client.send(request("POST", "/login", password)).await;
            assert_eq!(response.status(), want);
        }
        let chat = |user: &str| {
            let mut chat = request("POST", "/chat", "how are you");
            chat.headers_mut().insert("x-user", user.parse().expect("a name"));
            chat
        };
        let response = client.send(chat("anna")).await;
        assert_eq!(response.body(), "that was worth 11 tokens\n");
        // 50 were taken first and 39 given back: what is told was decided before that.
        let response = client.send(chat("anna")).await;
        assert_eq!(response.headers()["ratelimit-policy"], "\"api-1m\";q=20;w=12");
    });
}

#[test]
fn many_connections_share_one_limit() {
    run(async {
        let limit = Limit::per_hour(50).burst(50).name("all").build().expect("a limit");
        let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(100)), [limit]).expect("a gate");
        let layer = RateLimitLayer::new(gate.key(KeyFrom::global()));
        let address = serve(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                tokio::spawn(async move {
                    let mut client = LoopbackClient::connect(address).await;
                    let mut admitted = 0;
                    for _ in 0..10 {
                        admitted += usize::from(client.get("/").await.status() == 200);
                    }
                    admitted
                })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("it ends");
        }
        assert_eq!(admitted, 50, "not 50 for each connection");
    });
}

#[test]
fn a_refusal_is_read_by_a_real_client() {
    run(async {
        let limit = Limit::per_minute(1).burst(1).name("once").build().expect("a limit");
        let gate = KeyedGate::new(Arc::new(Limiter::with_capacity(100)), [limit]).expect("a gate");
        let layer = RateLimitLayer::new(gate.key(KeyFrom::global()));
        let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
        let mut client = LoopbackClient::connect(serve(app).await).await;
        assert_eq!(client.get("/").await.status(), 200);
        let refused = client.get("/").await;
        assert_eq!(refused.status(), 429);
        assert_eq!(refused.headers()["content-type"], "application/problem+json");
        assert_eq!(refused.headers()["content-length"], refused.body().len().to_string());
        assert!(refused.body().contains(r#""error":"Too Many Requests""#));
        // The connection goes on, and so does one whose client asks for the head only.
        let head = client.send(request("HEAD", "/", "")).await;
        assert_eq!((head.status().as_u16(), head.body().as_str()), (429, ""));
    });
}

#[test]
fn a_layer_inside_a_nested_router_sees_the_rest_of_the_path() {
    run(async {
        let layer = || {
            let limit = Limit::per_hour(9).burst(9).name("path").build().expect("a limit");
            let gate =
                KeyedGate::new(Arc::new(Limiter::with_capacity(100)), [limit]).expect("a gate");
            // It refuses everything, and tells what it was asked about.
            RateLimitLayer::new(gate.key(KeyFrom::global())).cost(|_| 10).refusal(|refused| {
                http::Response::new(refused.head().uri.path().to_string().into())
            })
        };
        let users = || Router::new().route("/users", get(|| async { "hello" }));
        let inside = Router::new().nest("/api", users().layer(layer()));
        let outside = Router::new().nest("/api", users()).layer(layer());
        for (app, seen) in [(inside, "/users"), (outside, "/api/users")] {
            let mut client = LoopbackClient::connect(serve(app).await).await;
            assert_eq!(client.get("/api/users").await.body(), seen);
        }
    });
}
