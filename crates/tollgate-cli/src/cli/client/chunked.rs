//! Bodies in chunks, as proxies send them: each with its length before it.

/// A length or a trailer in a line of more bytes is not read. Bound of a line without an end.
const LINE_BYTES_MAX: usize = 4 << 10;

/// These are no chunks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotChunks;

/// `None`: there is more to come.
type ChunkResult<T> = Result<Option<T>, NotChunks>;

/// The body that chunks make up. It is no longer than what is read.
pub(super) fn decode(bytes: &[u8]) -> ChunkResult<Vec<u8>> {
    let (mut body, mut rest) = (Vec::new(), bytes);
    loop {
        let Some((line, after)) = first_line(rest)? else { return Ok(None) };
        // After a semicolon may follow what only the chunk's sender knows.
        let size = line.split(|&byte| byte == b';').next().unwrap_or_default();
        let size = hexadecimal(size.trim_ascii())?;
        if size == 0 {
            return Ok(has_ended(after)?.then_some(body));
        }
        let Some((chunk, after)) = after.split_at_checked(size) else { return Ok(None) };
        body.extend_from_slice(chunk);
        rest = match after {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Ok(None),
            _ => return Err(NotChunks),
        };
    }
}

/// Whether the empty line is there that stands after trailers, which nobody here needs.
fn has_ended(mut rest: &[u8]) -> Result<bool, NotChunks> {
    while let Some((line, after)) = first_line(rest)? {
        if line.is_empty() {
            return Ok(true);
        }
        rest = after;
    }
    Ok(false)
}

/// A line and what comes after it.
fn first_line(bytes: &[u8]) -> ChunkResult<(&[u8], &[u8])> {
    match bytes.windows(2).take(LINE_BYTES_MAX).position(|window| window == b"\r\n") {
        Some(len) => Ok(Some((&bytes[..len], &bytes[len + 2..]))),
        None if bytes.len() > LINE_BYTES_MAX => Err(NotChunks),
        None => Ok(None),
    }
}

fn hexadecimal(digits: &[u8]) -> Result<usize, NotChunks> {
    // A sign is no digit, but the standard library takes it.
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(digits).ok().filter(|_| all).ok_or(NotChunks)?;
    usize::from_str_radix(text, 16).map_err(|_| NotChunks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_put_together() {
        let rows: [(&str, ChunkResult<&str>); 18] = [
            ("0\r\n\r\n", Ok(Some(""))),
            ("2\r\n{}\r\n0\r\n\r\n", Ok(Some("{}"))),
            ("A\r\n0123456789\r\n001\r\nx\r\n000\r\n\r\nmore", Ok(Some("0123456789x"))),
            ("2;name=\"v\"\r\n\r\n\r\n0\r\n\r\n", Ok(Some("\r\n"))),
            ("1 \r\nx\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n", Ok(Some("x"))),
            ("", Ok(None)),
            ("2", Ok(None)),
            ("2\r\n", Ok(None)),
            ("2\r\n{}", Ok(None)),
            ("2\r\n{}\r", Ok(None)),
            ("2\r\n{}\r\n0\r\n", Ok(None)),
            ("2\r\n{}\r\n0\r\nTrailer: 1\r\n", Ok(None)),
            ("ffffffffffffffff\r\nx", Ok(None)),
            ("10000000000000000\r\nx", Err(NotChunks)),
            ("2\r\n{}x", Err(NotChunks)),
            ("+2\r\n{}\r\n", Err(NotChunks)),
            ("\r\n", Err(NotChunks)),
            ("<html>\r\n", Err(NotChunks)),
        ];
        for (text, want) in rows {
            let want = want.map(|body| body.map(|body| body.as_bytes().to_vec()));
            assert_eq!(decode(text.as_bytes()), want, "{text:?}");
        }
        assert_eq!(decode(&[b'0'; LINE_BYTES_MAX]), Ok(None));
        assert_eq!(decode(&[b'0'; LINE_BYTES_MAX + 1]), Err(NotChunks), "a line without an end");
    }
}
