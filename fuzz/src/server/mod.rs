//! Bodies that need what `tollgate-cli` reads.

// Each test binary uses its own part of this module.
#![allow(dead_code, unused_imports)]

// The server is a program, not a library: its readers are taken as they stand.
#[path = "../../../crates/tollgate-cli/src/data_plane/facts.rs"]
mod facts;
#[path = "../../../crates/tollgate-cli/src/data_plane/forwarded.rs"]
mod forwarded;
mod forwarded_headers;
#[path = "../../../crates/tollgate-cli/src/data_plane/envoy/frame.rs"]
mod frame;
mod grpc;
#[path = "../../../crates/tollgate-cli/src/listeners/header_fields.rs"]
mod header_fields;
#[path = "../../../crates/tollgate-cli/src/data_plane/json/mod.rs"]
mod json;
mod json_body;
#[path = "../../../crates/tollgate-cli/src/data_plane/envoy/messages.rs"]
mod messages;
#[path = "../../../crates/tollgate-cli/src/listeners/fast_lane/plain_request.rs"]
mod plain_request;
mod plain_requests;
#[path = "../../../crates/tollgate-cli/src/data_plane/envoy/protobuf_reader.rs"]
mod protobuf_reader;
#[path = "../../../crates/tollgate-cli/src/data_plane/envoy/protobuf_writer.rs"]
mod protobuf_writer;
#[path = "../../../crates/tollgate-cli/src/data_plane/resp/request/mod.rs"]
mod request;
mod resp_commands;
#[path = "../../../crates/tollgate-cli/src/data_plane/envoy/response.rs"]
mod response;
#[path = "../source.rs"]
mod source;
#[path = "../../../crates/tollgate-cli/src/data_plane/gateway/websocket/frame.rs"]
mod websocket_frame;
mod websocket_frames;

use facts::escape_non_utf8;

pub use forwarded_headers::forwarded_headers;
pub use grpc::grpc;
pub use json_body::json_body;
pub use plain_requests::plain_requests;
pub use resp_commands::resp_commands;
pub use websocket_frames::websocket_frames;
