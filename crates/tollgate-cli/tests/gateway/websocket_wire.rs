//! A WebSocket client made of raw frames, and the application that answers it.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::net::free_address;
use testkit::peers::{self, ProxyProcess};

use super::wire_client::{WireClient, WireReply};

/// Opcodes of frames.
pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// The bit of a frame that ends its message.
pub(crate) const FINAL: u8 = 0x80;

/// The request that opens a WebSocket.
pub(crate) fn handshake(target: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nhost: app\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// A frame of a client. `first` has the opcode and the bits beside it.
pub(crate) fn client_frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0xA1, 0xB2, 0xC3, 0xD4];
    let masked = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    let length = payload.len();
    let mut frame = vec![first];
    match length {
        0..126 => frame.push(0x80 | length as u8),
        126..65_536 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        _ => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(masked);
    frame
}

/// A frame of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerFrame {
    pub(crate) first: u8,
    pub(crate) payload: Vec<u8>,
}

impl ServerFrame {
    /// The code and the reason of a Close frame.
    pub(crate) fn close(&self) -> (u16, String) {
        assert_eq!(self.first, FINAL | CLOSE, "{self:?}");
        let code = u16::from_be_bytes([self.payload[0], self.payload[1]]);
        (code, String::from_utf8(self.payload[2..].to_vec()).expect("a reason in UTF-8"))
    }
}

/// A client of a WebSocket.
pub(crate) struct WebSocketWire {
    pub(crate) client: WireClient,
}

impl WebSocketWire {
    /// Opens a WebSocket.
    pub(crate) fn open(address: SocketAddr, target: &str) -> WebSocketWire {
        WebSocketWire::try_open(address, target).unwrap_or_else(|reply| panic!("{reply:?}"))
    }

    /// Opens a WebSocket, or returns the refusal.
    pub(crate) fn try_open(address: SocketAddr, target: &str) -> Result<WebSocketWire, WireReply> {
        let mut client = WireClient::connect(address);
        client.send(handshake(target).as_bytes());
        let mut head = client.read_head().expect("a head");
        if head.status == 101 {
            return Ok(WebSocketWire { client });
        }
        client.read_body_of("GET", &mut head).expect("a body");
        Err(head)
    }

    pub(crate) fn send(&mut self, first: u8, payload: &[u8]) {
        self.client.send(&client_frame(first, payload));
    }

    /// Sends a text message of one frame.
    pub(crate) fn say(&mut self, text: &str) {
        self.send(FINAL | TEXT, text.as_bytes());
    }

    pub(crate) fn read(&mut self) -> io::Result<ServerFrame> {
        let head = self.client.read_exact(2)?;
        let number = |bytes: Vec<u8>| bytes.iter().fold(0, |sum, byte| sum << 8 | *byte as usize);
        let length = match head[1] {
            126 => number(self.client.read_exact(2)?),
            127 => number(self.client.read_exact(8)?),
            length => length.into(),
        };
        Ok(ServerFrame { first: head[0], payload: self.client.read_exact(length)? })
    }

    /// Reads up to the Close frame. Returns the number of other frames before it, its code and its reason.
    pub(crate) fn read_close(&mut self) -> (usize, u16, String) {
        for frames in 0.. {
            let frame = self.read().expect("a Close frame at the end");
            if frame.first == FINAL | CLOSE {
                let (code, reason) = frame.close();
                return (frames, code, reason);
            }
        }
        unreachable!("the stream ends")
    }

    /// Answers the server's Close frame, and waits until the connection is closed.
    pub(crate) fn finish(mut self) {
        self.send(FINAL | CLOSE, &1_000_u16.to_be_bytes());
        assert_eq!(self.client.read_to_close(), Some(Vec::new()));
    }
}

/// The application `websocket_application.js`.
pub(crate) struct WebSocketApplication(ProxyProcess);

impl WebSocketApplication {
    pub(crate) fn start() -> WebSocketApplication {
        let address = free_address();
        WebSocketApplication(ProxyProcess::program("node", address, |_| {
            let mut command = Command::new("node");
            command.env("NODE_PATH", peers::node_path());
            command.arg(beside("websocket_application.js")).arg(address.port().to_string());
            command
        }))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// The application's record.
    pub(crate) fn seen(&self) -> serde_json::Value {
        let reply = WireClient::connect(self.address()).get("/_seen").expect("an answer");
        serde_json::from_slice(&reply.body).expect("a JSON object")
    }
}

/// The path of a file beside this one.
pub(crate) fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway").join(name)
}
