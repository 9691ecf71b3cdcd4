//! The reader of `corpus.txt`, which describes its format.

/// A raw request, and what must become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CorpusCase {
    pub(crate) name: String,
    pub(crate) verdict: CorpusVerdict,
    /// Fields that forwarded requests lack.
    pub(crate) absent: Vec<String>,
    /// Fields that forwarded requests have exactly once, with their values.
    pub(crate) present: Vec<(String, String)>,
    pub(crate) bytes: Vec<u8>,
}

/// The expected outcome of a raw request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CorpusVerdict {
    /// The upstream receives exactly this many requests and answers them.
    Forward(usize),
    /// The gateway answers with an error or closes; the upstream receives nothing.
    Refuse,
    /// The upstream never receives a complete request.
    Cut,
}

/// Reads all cases.
pub(crate) fn read() -> Vec<CorpusCase> {
    let mut cases = Vec::new();
    let mut has_comment = false;
    for line in include_str!("corpus.txt").lines() {
        if line.is_empty() || line.starts_with('#') {
            has_comment = line.starts_with("# ");
            continue;
        }
        assert!(has_comment, "no comment above {line:?}");
        has_comment = false;
        cases.push(read_case(line));
    }
    cases
}

fn read_case(line: &str) -> CorpusCase {
    let mut parts = line.splitn(3, " | ");
    let (Some(name), Some(verdict), Some(bytes)) = (parts.next(), parts.next(), parts.next())
    else {
        panic!("not three parts: {line:?}")
    };
    let mut words = verdict.split(' ').peekable();
    let verdict = match words.next() {
        Some("refuse") => CorpusVerdict::Refuse,
        Some("cut") => CorpusVerdict::Cut,
        Some("forward") => {
            let count = words.next_if(|word| word.parse::<usize>().is_ok());
            CorpusVerdict::Forward(count.map_or(1, |count| count.parse().expect("a number")))
        }
        other => panic!("unknown verdict {other:?}: {line:?}"),
    };
    let (mut absent, mut present) = (Vec::new(), Vec::new());
    for word in words {
        match (word.strip_prefix('-'), word.strip_prefix('=')) {
            (Some(field), _) => absent.push(field.to_owned()),
            (_, Some(field)) => {
                let (field, value) = field.split_once(':').expect("a name and a value");
                present.push((field.to_owned(), value.to_owned()));
            }
            _ => panic!("unknown condition {word:?}: {line:?}"),
        }
    }
    CorpusCase { name: name.to_owned(), verdict, absent, present, bytes: expand(name, bytes) }
}

/// Replaces the names in braces, and then the escapes.
fn expand(name: &str, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (word, after) = after.split_once('}').expect("a closing brace");
        out.extend(unescape(before));
        out.extend(match word {
            "n" => b"\r\n".to_vec(),
            "get" => format!("GET /{name} HTTP/1.1\r\nHost: app\r\n").into_bytes(),
            "post" => format!("POST /{name} HTTP/1.1\r\nHost: app\r\n").into_bytes(),
            "evil" => b"GET /smuggled HTTP/1.1\r\nHost: app\r\nX-Y: abc\r\n\r\n".to_vec(),
            repeat => {
                let (piece, times) = repeat.rsplit_once('*').expect("a known name in braces");
                unescape(piece).repeat(times.parse().expect("a number of times"))
            }
        });
        rest = after;
    }
    out.extend(unescape(rest));
    out
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match bytes.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'0') => 0,
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits = [bytes.next(), bytes.next()].map(|digit| digit.expect("two digits"));
                let digits = std::str::from_utf8(&digits).expect("digits").to_owned();
                u8::from_str_radix(&digits, 16).expect("hexadecimal digits")
            }
            other => panic!("unknown escape {other:?} in {text:?}"),
        });
    }
    out
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let cases = read();
    let names: std::collections::BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 250, "{}", cases.len());
}

#[test]
fn bytes_are_written_in_short() {
    let case = read_case(r"a | forward 2 -x-a =x-b:1 | {get}X:\t{ab*2}\x00{n}{n}");
    assert_eq!(case.bytes, b"GET /a HTTP/1.1\r\nHost: app\r\nX:\tabab\0\r\n\r\n");
    assert_eq!(case.verdict, CorpusVerdict::Forward(2));
    assert_eq!((case.absent, case.present), (vec!["x-a".into()], vec![("x-b".into(), "1".into())]));
}
