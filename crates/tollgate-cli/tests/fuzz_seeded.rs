//! The bodies of the fuzz targets of this crate on seeded random bytes, and on every input that once
//! failed.

#[path = "../../../fuzz/src/server/mod.rs"]
#[allow(unreachable_pub)]
mod bodies;
#[path = "../../../fuzz/src/seeded.rs"]
mod seeded;

use seeded::seeded;

#[test]
fn bodies_are_read_as_json_is() {
    seeded("json_body", bodies::json_body, 400_000, 120);
}

#[test]
fn only_trusted_peers_say_what_is_asked_about() {
    seeded("forwarded_headers", bodies::forwarded_headers, 150_000, 100);
}

#[test]
fn plain_requests_leave_no_doubt() {
    seeded("plain_requests", bodies::plain_requests, 150_000, 60);
}

#[test]
fn commands_are_read_whole_as_in_pieces() {
    seeded("resp_commands", bodies::resp_commands, 200_000, 160);
}

#[test]
fn frames_are_found_in_pieces_as_at_once() {
    seeded("websocket_frames", bodies::websocket_frames, 100_000, 120);
}

#[test]
fn bytes_of_grpc_are_read_and_written_as_others_do() {
    seeded("grpc", bodies::grpc, 300_000, 120);
}
