//! A client of bytes: sends exactly what a test says, and reads responses with chunks, trailers and interim responses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};

use crate::harness::DEADLINE;

/// A response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireReply {
    pub(crate) status: u16,
    /// Fields in order, with names in small letters.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// Statuses of the interim responses before it.
    pub(crate) interim: Vec<u16>,
}

impl WireReply {
    /// The value of a field, if there is exactly one.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(field, _)| field == name);
        let (_, value) = found.next()?;
        assert!(found.next().is_none(), "{name} appears twice: {self:?}");
        Some(value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns true if the application behind the gateway wrote it.
    pub(crate) fn is_from_application(&self) -> bool {
        self.field("x-application") == Some("yes")
    }

    /// The member `code` of a problem document.
    pub(crate) fn problem_code(&self) -> String {
        let document: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        document["code"].as_str().unwrap_or_else(|| panic!("no code: {self:?}")).to_owned()
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct WireClient {
    pub(crate) stream: TcpStream,
    /// Bytes received and not yet read.
    unread: Vec<u8>,
}

impl WireClient {
    pub(crate) fn connect(address: SocketAddr) -> WireClient {
        WireClient::over(TcpStream::connect(address).expect("the listener is open"))
    }

    /// Connects from this loopback address; the gateway trusts 127.0.0.1 only.
    pub(crate) fn connect_from(from: Ipv4Addr, address: SocketAddr) -> WireClient {
        let stream = testkit::net::connect_from(from, address);
        WireClient::over(stream.expect("the listener is open"))
    }

    pub(crate) fn over(stream: TcpStream) -> WireClient {
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("a socket");
        WireClient { stream, unread: Vec::new() }
    }

    /// Sends bytes. An error is ignored: a server may have answered and closed before the last byte.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Closes the sending side.
    pub(crate) fn finish(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Sends a GET request and reads its response.
    pub(crate) fn get(&mut self, target: &str) -> io::Result<WireReply> {
        self.send(format!("GET {target} HTTP/1.1\r\nhost: app\r\n\r\n").as_bytes());
        self.read_reply("GET")
    }

    /// Reads the head of the next response that is not interim, except 101.
    pub(crate) fn read_head(&mut self) -> io::Result<WireReply> {
        let mut interim = Vec::new();
        loop {
            let reply = self.read_any_head()?;
            if reply.status >= 200 || reply.status == 101 {
                return Ok(WireReply { interim, ..reply });
            }
            interim.push(reply.status);
        }
    }

    /// Reads the head of the next response, which may be interim.
    pub(crate) fn read_any_head(&mut self) -> io::Result<WireReply> {
        let line = self.read_line()?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {line:?}")))?;
        Ok(WireReply { status, fields: self.read_fields()?, ..WireReply::default() })
    }

    /// Reads a whole response to a request of this method.
    pub(crate) fn read_reply(&mut self, method: &str) -> io::Result<WireReply> {
        let mut reply = self.read_head()?;
        self.read_body_of(method, &mut reply)?;
        Ok(reply)
    }

    /// Reads the body of a response to a request of this method.
    pub(crate) fn read_body_of(&mut self, method: &str, reply: &mut WireReply) -> io::Result<()> {
        if method == "HEAD" || matches!(reply.status, 101 | 204 | 304) {
            return Ok(());
        }
        if reply.field("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.read_chunk()? {
                reply.body.extend_from_slice(&chunk);
            }
            reply.trailers = self.read_fields()?;
        } else if let Some(length) = reply.field("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            reply.body = self.read_exact(length)?;
        } else {
            while self.receive()? > 0 {}
            reply.body = std::mem::take(&mut self.unread);
        }
        Ok(())
    }

    /// Reads one chunk; `None` for the last one, before the trailers.
    pub(crate) fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = self.read_line()?;
        let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
        if size == 0 {
            return Ok(None);
        }
        let chunk = self.read_exact(size)?;
        assert_eq!(self.read_line()?, "", "a chunk ends with its line");
        Ok(Some(chunk))
    }

    pub(crate) fn read_exact(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.receive_some()?;
        }
        Ok(self.unread.drain(..length).collect())
    }

    /// Reads and drops this many bytes.
    pub(crate) fn skip(&mut self, length: u64) -> io::Result<()> {
        let mut left = length - self.unread.len() as u64;
        self.unread.clear();
        let mut piece = vec![0; 1 << 18];
        while left > 0 {
            let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match self.stream.read(&mut piece[..most])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
        Ok(())
    }

    fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.receive_some()?;
        }
    }

    pub(crate) fn read_fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.read_line()?;
            let Some((name, value)) = line.split_once(':') else { return Ok(fields) };
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// Reads until the server closes, and returns the bytes; `None` if it resets the connection.
    pub(crate) fn read_to_close(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.receive() {
                Ok(0) => return Some(std::mem::take(&mut self.unread)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the server does not close: {error}"),
            }
        }
    }

    fn receive_some(&mut self) -> io::Result<()> {
        match self.receive()? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        use io::ErrorKind::{TimedOut, WouldBlock};
        let mut piece = [0; 65_536];
        let length = match self.stream.read(&mut piece) {
            Err(error) if matches!(error.kind(), TimedOut | WouldBlock) => {
                panic!("the gateway sends nothing for {DEADLINE:?}")
            }
            read => read?,
        };
        self.unread.extend_from_slice(&piece[..length]);
        Ok(length)
    }
}
