//! A web service with three limits: 100 requests a minute for each client, five failed logins a minute, and
//! tokens that each user pays for after the fact.
//!
//! ```text
//! cargo run -p tollgate-tower --example axum
//! curl -i http://127.0.0.1:3000/
//! for i in $(seq 6); do curl -s -o /dev/null -w '%{http_code}\n' -d wrong http://127.0.0.1:3000/login; done
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Extension};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::routing::{get, post};
use tollgate::{Algorithm, Limit, Limiter};
use tollgate_tower::{GateDecision, KeyFrom, KeyedGate, RateLimitLayer, charge};

type AppError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AppError> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}", listener.local_addr()?);
    // With the addresses of clients: the layers below count by them.
    let service = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

pub(crate) fn app() -> Result<Router, AppError> {
    // One table for all limits: a limit's name keeps its counts apart.
    let limiter = Arc::new(Limiter::with_capacity(100_000));

    let api = Limit::per_minute(100).burst(20).name("api").build()?;
    let per_client = RateLimitLayer::new(KeyedGate::new(Arc::clone(&limiter), [api])?).peer(peer);

    // A log: never more than five in any minute. Whoever knows the password pays nothing.
    let guesses =
        Limit::per_minute(5).algorithm(Algorithm::SlidingWindowLog).name("guesses").build()?;
    let logins = RateLimitLayer::new(KeyedGate::new(Arc::clone(&limiter), [guesses])?)
        .peer(peer)
        .charge(charge::only_failures);

    // 50 tokens are taken first; the response says what it really was. Nobody has checked who `x-user` is
    // here: whoever invents users is held by the limit of its address, which is around this one.
    let tokens = Limit::per_day(1_000).name("tokens").build()?;
    let user = KeyFrom::header(HeaderName::from_static("x-user")).or(KeyFrom::client_ip());
    let paid = RateLimitLayer::new(KeyedGate::new(limiter, [tokens])?.key(user))
        .peer(peer)
        .cost(|_| 50)
        .charge(charge::header(HeaderName::from_static("x-tokens-used")));

    Ok(Router::new()
        .route("/login", post(login).layer(logins))
        .route("/chat", post(chat).layer(paid))
        .route("/", get(hello))
        .layer(per_client))
}

/// Where axum has the address at the other end of the connection.
fn peer(head: &Parts) -> Option<IpAddr> {
    head.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
}

/// Handlers see what was decided.
async fn hello(decision: Extension<GateDecision>) -> String {
    format!("hello, you have {} requests left\n", decision.remaining())
}

async fn login(password: Bytes) -> StatusCode {
    if password == "right" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

async fn chat(question: Bytes) -> ([(HeaderName, String); 1], String) {
    let tokens = question.len();
    let used = (HeaderName::from_static("x-tokens-used"), tokens.to_string());
    ([used], format!("that was worth {tokens} tokens\n"))
}
