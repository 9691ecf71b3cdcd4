//! gRPC through the gateway: a service and a client of tonic with the gateway between them.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use bytes::{Buf, BufMut};
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::client::Grpc as ClientGrpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

use super::gateway_process::{COUNTING_RULES, GatewayProcess};
use crate::harness::DEADLINE;

/// Messages that are plain text.
#[derive(Clone, Copy, Debug, Default)]
struct TextCodec;

impl Codec for TextCodec {
    type Encode = String;
    type Decode = String;
    type Encoder = TextCodec;
    type Decoder = TextCodec;

    fn encoder(&mut self) -> TextCodec {
        TextCodec
    }

    fn decoder(&mut self) -> TextCodec {
        TextCodec
    }
}

impl Encoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for TextCodec {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| Status::internal("messages are text"))
    }
}

type GrpcFuture<T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send>>;

/// The service: its three methods answer one message, many, or each of many.
#[derive(Clone, Copy)]
struct EchoGrpcService;

impl UnaryService<String> for EchoGrpcService {
    type Response = String;
    type Future = GrpcFuture<String>;

    fn call(&mut self, request: Request<String>) -> GrpcFuture<String> {
        let message = request.into_inner();
        Box::pin(async move {
            match message.as_str() {
                "missing" => Err(Status::not_found("there is no such word: ü")),
                _ => Ok(Response::new(message.to_uppercase())),
            }
        })
    }
}

/// Answers a number with so many messages; the word `break` ends the stream with an error.
impl ServerStreamingService<String> for EchoGrpcService {
    type Response = String;
    type ResponseStream = ReceiverStream<Result<String, Status>>;
    type Future = GrpcFuture<Self::ResponseStream>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let message = request.into_inner();
        Box::pin(async move {
            let (sender, messages) = mpsc::channel(1);
            tokio::spawn(async move {
                for number in 0..message.parse().unwrap_or(3) {
                    let _ = sender.send(Ok(format!("message {number}"))).await;
                }
                if message == "break" {
                    let _ = sender.send(Err(Status::aborted("as asked"))).await;
                }
            });
            Ok(Response::new(ReceiverStream::new(messages)))
        })
    }
}

impl StreamingService<String> for EchoGrpcService {
    type Response = String;
    type ResponseStream = ReceiverStream<Result<String, Status>>;
    type Future = GrpcFuture<Self::ResponseStream>;

    fn call(&mut self, request: Request<Streaming<String>>) -> Self::Future {
        let mut incoming = request.into_inner();
        Box::pin(async move {
            let (sender, messages) = mpsc::channel(1);
            tokio::spawn(async move {
                while let Ok(Some(message)) = incoming.message().await {
                    let _ = sender.send(Ok(message.to_uppercase())).await;
                }
            });
            Ok(Response::new(ReceiverStream::new(messages)))
        })
    }
}

async fn answer(request: http::Request<Incoming>) -> http::Response<tonic::body::Body> {
    let mut grpc = Grpc::new(TextCodec);
    match request.uri().path() {
        "/test.Echo/Say" => grpc.unary(EchoGrpcService, request).await,
        "/test.Echo/Count" => grpc.server_streaming(EchoGrpcService, request).await,
        "/test.Echo/Chat" => grpc.streaming(EchoGrpcService, request).await,
        _ => Status::unimplemented("no such method").into_http(),
    }
}

/// Serves on a free port for as long as the runtime runs.
async fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service =
                service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
            let connection = http2::Builder::new(TokioExecutor::new());
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// A client of tonic, connected to the gateway.
async fn connect(gateway: &GatewayProcess) -> ClientGrpc<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", gateway.address()));
    let channel = endpoint.expect("an address").connect().await.expect("the listener is open");
    let mut client = ClientGrpc::new(channel);
    client.ready().await.expect("a connection");
    client
}

async fn say(client: &mut ClientGrpc<Channel>, message: &str) -> Result<String, Status> {
    client.ready().await.expect("a connection");
    let path = PathAndQuery::from_static("/test.Echo/Say");
    let answer = client.unary(Request::new(message.to_owned()), path, TextCodec).await;
    answer.map(Response::into_inner)
}

/// Runs a test that must end in time.
fn run(test: impl Future<Output = ()>) {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { timeout(DEADLINE, test).await.expect("in time") });
}

#[test]
fn calls_and_their_errors_pass() {
    run(async {
        let gateway = GatewayProcess::start(serve().await, COUNTING_RULES);
        let mut client = connect(&gateway).await;
        assert_eq!(say(&mut client, "hello").await.expect("an answer"), "HELLO");
        let missing = say(&mut client, "missing").await.expect_err("an error");
        assert_eq!(
            (missing.code(), missing.message()),
            (Code::NotFound, "there is no such word: ü")
        );
        client.ready().await.expect("a connection");
        let path = PathAndQuery::from_static("/test.Echo/Nothing");
        let unknown = client.unary(Request::new("a".to_owned()), path, TextCodec).await;
        assert_eq!(unknown.expect_err("an error").code(), Code::Unimplemented);
        let long = "x".repeat(1_000_000);
        assert_eq!(say(&mut client, &long).await.expect("an answer"), "X".repeat(1_000_000));
        assert_eq!(gateway.counted(), 4);
    });
}

#[test]
fn messages_stream_in_both_directions() {
    run(async {
        let gateway = GatewayProcess::start(serve().await, COUNTING_RULES);
        let mut client = connect(&gateway).await;
        let count = PathAndQuery::from_static("/test.Echo/Count");
        let request = Request::new("1000".to_owned());
        let answer = client.server_streaming(request, count.clone(), TextCodec).await;
        let mut messages = answer.expect("an answer").into_inner();
        for number in 0..1_000 {
            let message = messages.message().await.expect("a message");
            assert_eq!(message, Some(format!("message {number}")));
        }
        assert_eq!(messages.message().await.expect("the end"), None);
        // An error in the trailers, after messages.
        client.ready().await.expect("a connection");
        let answer = client.server_streaming(Request::new("break".to_owned()), count, TextCodec);
        let mut messages = answer.await.expect("an answer").into_inner();
        for _ in 0..3 {
            assert!(messages.message().await.expect("a message").is_some());
        }
        assert_eq!(messages.message().await.expect_err("an error").code(), Code::Aborted);
        // One message at a time, each answered before the next is sent.
        client.ready().await.expect("a connection");
        let (sender, outgoing) = mpsc::channel(1);
        let chat = PathAndQuery::from_static("/test.Echo/Chat");
        let request = Request::new(ReceiverStream::new(outgoing));
        let mut answers =
            client.streaming(request, chat, TextCodec).await.expect("an answer").into_inner();
        for number in 0..100 {
            sender.send(format!("word {number}")).await.expect("it listens");
            let answer = answers.message().await.expect("a message");
            assert_eq!(answer, Some(format!("WORD {number}")));
        }
        drop(sender);
        assert_eq!(answers.message().await.expect("the end"), None);
        assert_eq!(gateway.counted(), 3);
    });
}

#[test]
fn a_refusal_is_resource_exhausted() {
    run(async {
        let rules = "rules: [{ name: two, key: '{ip}', limits: [2/day] }]";
        let gateway = GatewayProcess::start(serve().await, rules);
        let mut client = connect(&gateway).await;
        for _ in 0..2 {
            assert_eq!(say(&mut client, "hello").await.expect("an answer"), "HELLO");
        }
        let refused = say(&mut client, "hello").await.expect_err("a refusal");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    });
}
