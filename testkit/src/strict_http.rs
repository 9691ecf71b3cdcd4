//! A strict reader of HTTP/1.1 requests (RFC 9112), for bytes that a proxy has sent. It accepts one spelling of everything
//! and guesses nothing, so that bytes which two servers could read differently are an error here.

/// A complete request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrictRequest {
    /// The method.
    pub method: String,
    /// The target as it was sent.
    pub target: String,
    /// The header fields in order, with names in small letters.
    pub fields: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// The trailer fields of a chunked body.
    pub trailers: Vec<(String, String)>,
}

impl StrictRequest {
    /// The values of a header field, in order.
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<&str> {
        let found = self.fields.iter().filter(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a header field, if there is exactly one.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        match self.values(name)[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// The result of reading the start of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StrictReading {
    /// A request, and the number of bytes it took.
    Complete(Box<StrictRequest>, usize),
    /// The bytes are the start of a request.
    Incomplete,
    /// The bytes are no request, with the reason.
    Invalid(&'static str),
}

/// Reads one request from the start of `bytes`.
#[must_use]
pub fn read_request(bytes: &[u8]) -> StrictReading {
    let mut lines = StrictLines { bytes, at: 0 };
    match read(&mut lines) {
        Ok(request) => StrictReading::Complete(Box::new(request), lines.at),
        Err(None) => StrictReading::Incomplete,
        Err(Some(reason)) => StrictReading::Invalid(reason),
    }
}

/// `Err(None)` if the bytes end too early, otherwise the reason why they are no request.
type StrictResult<T> = Result<T, Option<&'static str>>;

fn read(lines: &mut StrictLines<'_>) -> StrictResult<StrictRequest> {
    let mut request = StrictRequest::default();
    let line = lines.next_line()?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Some("the request line has not three words that end in HTTP/1.1"));
    };
    if !is_token(method) {
        return Err(Some("the method is no token"));
    }
    if target.is_empty() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Some("the target has bytes that must be encoded"));
    }
    (request.method, request.target) = (method.to_owned(), target.to_owned());
    request.fields = read_fields(lines)?;
    if request.value("host").is_none() {
        return Err(Some("there is not exactly one Host"));
    }
    read_body(lines, &mut request)?;
    Ok(request)
}

fn read_body(lines: &mut StrictLines<'_>, request: &mut StrictRequest) -> StrictResult<()> {
    match (&request.values("content-length")[..], &request.values("transfer-encoding")[..]) {
        ([], []) => Ok(()),
        ([length], []) => {
            let length = decimal(length).ok_or(Some("Content-Length is no plain number"))?;
            request.body = lines.take(length)?.to_vec();
            Ok(())
        }
        ([], ["chunked"]) => read_chunks(lines, request),
        _ => Err(Some("Content-Length and Transfer-Encoding contradict each other")),
    }
}

fn read_chunks(lines: &mut StrictLines<'_>, request: &mut StrictRequest) -> StrictResult<()> {
    loop {
        let line = lines.next_line()?;
        let digits = line.len() <= 15 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = if digits { usize::from_str_radix(&line, 16).ok() } else { None };
        match size.ok_or(Some("a chunk has no plain size"))? {
            0 => break,
            size => request.body.extend_from_slice(lines.take(size)?),
        }
        if !lines.next_line()?.is_empty() {
            return Err(Some("a chunk is longer than its size"));
        }
    }
    request.trailers = read_fields(lines)?;
    Ok(())
}

/// Reads fields up to the empty line after them.
fn read_fields(lines: &mut StrictLines<'_>) -> StrictResult<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = lines.next_line()?;
        if line.is_empty() {
            return Ok(fields);
        }
        let (name, value) = line.split_once(':').ok_or(Some("a field has no colon"))?;
        if !is_token(name) {
            return Err(Some("the name of a field is no token"));
        }
        let value = value.trim_matches([' ', '\t']);
        fields.push((name.to_ascii_lowercase(), value.to_owned()));
    }
}

fn decimal(text: &str) -> Option<usize> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

fn is_token(text: &str) -> bool {
    let other = |byte| b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || other(byte))
}

/// The lines of a request.
struct StrictLines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> StrictLines<'a> {
    /// The next line without its CRLF.
    fn next_line(&mut self) -> StrictResult<String> {
        let rest = &self.bytes[self.at..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            // A control character makes the line invalid even before it ends.
            return Err(rest.iter().find_map(|byte| forbidden(*byte)));
        };
        let line = rest[..end].strip_suffix(b"\r").ok_or(Some("a line ends without CR"))?;
        if let Some(reason) = line.iter().find_map(|byte| forbidden(*byte)) {
            return Err(Some(reason));
        }
        if line.contains(&b'\r') {
            return Err(Some("a line has a CR in it"));
        }
        self.at += end + 1;
        // Values may have bytes from 0x80, and nothing here depends on them.
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    fn take(&mut self, length: usize) -> StrictResult<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..length).ok_or(None)?;
        self.at += length;
        Ok(taken)
    }
}

fn forbidden(byte: u8) -> Option<&'static str> {
    let control = byte.is_ascii_control() && !matches!(byte, b'\t' | b'\r' | b'\n');
    control.then_some("a line has a control character")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_one_by_one() {
        let bytes =
            b"POST /a HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nContent-Length: 3\r\n\r\nabcGET / HTTP";
        let StrictReading::Complete(request, length) = read_request(bytes) else {
            panic!("{:?}", read_request(bytes))
        };
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/a"));
        assert_eq!((request.value("x-one"), request.body.as_slice()), (Some("1"), &b"abc"[..]));
        assert_eq!(read_request(&bytes[length..]), StrictReading::Incomplete);
        let chunked = b"PUT / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n";
        let StrictReading::Complete(request, length) = read_request(chunked) else {
            panic!("{:?}", read_request(chunked))
        };
        assert_eq!((request.body.as_slice(), length), (&b"abc0123456789"[..], chunked.len()));
        assert_eq!(request.trailers, [("x-sum".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn every_start_of_a_request_is_incomplete() {
        let bytes =
            b"PUT / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        for end in 0..bytes.len() {
            assert_eq!(read_request(&bytes[..end]), StrictReading::Incomplete, "{end}");
        }
    }

    #[test]
    fn every_doubt_is_an_error() {
        // The head after the request line and Host | the body
        let rows: [(&str, &str); 14] = [
            ("Content-Length: +3\r\n", "abc"),
            ("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"),
            ("Content-Length: 3, 3\r\n", "abc"),
            ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            ("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
            ("Transfer-Encoding: chunked\r\n", "0x0\r\n\r\n"),
            ("Transfer-Encoding: chunked\r\n", "3;a=b\r\nabc\r\n0\r\n\r\n"),
            ("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n"),
            ("Transfer-Encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"),
            ("X-A : 1\r\n", ""),
            (" folded\r\n", ""),
            ("X-A: 1\n", ""),
            ("X-A: a\rb\r\n", ""),
            ("Host: b\r\n", ""),
        ];
        for (fields, body) in rows {
            let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}");
            let reading = read_request(bytes.as_bytes());
            assert!(matches!(reading, StrictReading::Invalid(_)), "{bytes:?}: {reading:?}");
        }
        for line in ["GET / HTTP/1.0", "GET /a b HTTP/1.1", "GET  / HTTP/1.1", "G(T / HTTP/1.1"] {
            let bytes = format!("{line}\r\nHost: a\r\n\r\n");
            let reading = read_request(bytes.as_bytes());
            assert!(matches!(reading, StrictReading::Invalid(_)), "{line}: {reading:?}");
        }
    }
}
