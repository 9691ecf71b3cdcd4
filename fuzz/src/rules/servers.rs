//! Models of servers' path handling by their documentation, each a few lines that share no code with the rules:
//! the path that a server sees must be among the spellings.

use tollgate_rules::path::{SPELLINGS_MAX, Spellings, normalise};

use super::source::FuzzSource;

/// Checks a target made of parts that servers read differently.
pub(super) fn targets(source: &mut FuzzSource<'_>) {
    const PIECES: [&str; 22] = [
        "/", "/", "/", "//", "..", ".", "%2e", "%2E%2e", "%2F", "%2f", "\\", "%5C", "%5c", ";",
        ";x=1", "%3B", "a", "login", "%61", "é", "%20", "%",
    ];
    let raw: String = "/"
        .chars()
        .chain((0..source.below(14)).flat_map(|_| source.pick(&PIECES).chars()))
        .collect();
    check(&raw);
}

/// Checks that the spellings of any text are few and well formed, and that every server's path is among them.
pub(super) fn check(raw: &str) {
    let spellings = Spellings::of(raw);
    assert!(spellings.len() <= SPELLINGS_MAX, "{raw:?} has {} spellings", spellings.len());
    let texts: Vec<&str> = spellings.iter().map(|one| one.text()).collect();
    assert_eq!(texts[0], normalise(raw), "{raw:?}");
    for text in &texts {
        let path = text.strip_prefix('/').unwrap_or_else(|| panic!("{raw:?} became {text:?}"));
        assert!(path.is_empty() || path.split('/').all(|part| !part.is_empty()), "{text:?}");
    }
    if !raw.starts_with('/') || raw.contains(['?', '#']) {
        return;
    }
    for (server, path) in SERVERS {
        let seen = path(raw.as_bytes());
        assert!(texts.contains(&&*seen), "{server} sees {seen:?} in {raw:?}, rules {texts:?}");
    }
}

type ServerPathFn = fn(&[u8]) -> String;

const SERVERS: [(&str, ServerPathFn); 8] = [
    ("uvicorn", |raw| written(&split(&decoded(raw, true), b"/"), false)),
    ("nginx", |raw| written(&resolved(split(&decoded(raw, true), b"/"), false), false)),
    ("Express", |raw| written(&split(raw, b"/"), true)),
    ("a URL", |raw| {
        let dotted = resolved(split(&after_host(raw), b"/\\"), true);
        // Rules take an escaped dot for a dot here, also where it resolves nothing.
        let plain = |part: &Vec<u8>| replaced(&replaced(part, b"%2e"), b"%2E");
        written(&dotted.iter().map(plain).collect::<Vec<_>>(), true)
    }),
    ("a URL that is decoded", |raw| {
        let dotted = resolved(split(&after_host(raw), b"/\\"), true);
        written(&dotted.iter().map(|part| decoded(part, false)).collect::<Vec<_>>(), false)
    }),
    ("Tomcat", |raw| servlet(raw, false)),
    ("Tomcat that decodes slashes", |raw| servlet(raw, true)),
    ("ASP.NET", |raw| {
        let whole = decoded(raw, false);
        written(&resolved(split(&whole, b"/\\"), false), false)
    }),
];

fn replaced(part: &[u8], escape: &[u8; 3]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), part);
    while let Some((first, after)) = rest.split_first() {
        match rest.strip_prefix(escape) {
            Some(after) => {
                out.push(b'.');
                rest = after;
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fn servlet(raw: &[u8], slashes: bool) -> String {
    let cut = |part: Vec<u8>| part.split(|byte| *byte == b';').next().unwrap_or_default().to_vec();
    let parts = split(raw, b"/").into_iter().map(cut);
    let whole: Vec<u8> = parts.flat_map(|part| [b"/".to_vec(), part].concat()).collect();
    written(&resolved(split(&decoded(&whole, slashes), b"/"), false), false)
}

fn split(path: &[u8], slashes: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| slashes.contains(byte)).skip(1).map(<[u8]>::to_vec).collect()
}

/// Without escapes, but for those of slashes unless these are wanted.
fn decoded(path: &[u8], slashes: bool) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < path.len() {
        match escape(&path[at..]) {
            Some(byte) if slashes || byte != b'/' => {
                // A decoded `%` must not begin another escape.
                out.extend(if byte == b'%' { b"%25".to_vec() } else { vec![byte] });
                at += 3;
            }
            Some(_) => {
                out.extend(&path[at..at + 3]);
                at += 3;
            }
            None => {
                out.extend(if path[at] == b'%' { b"%25".to_vec() } else { vec![path[at]] });
                at += 1;
            }
        }
    }
    out
}

fn escape(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.get(1..3)?).ok()?;
    let is_escape = text[0] == b'%' && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_escape.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// `empty`: as browsers do it, where `..` takes back an empty segment and may be escaped.
fn resolved(parts: Vec<Vec<u8>>, empty: bool) -> Vec<Vec<u8>> {
    let mut done: Vec<Vec<u8>> = Vec::new();
    for part in parts {
        let dots = String::from_utf8_lossy(&part).to_ascii_lowercase().replace("%2e", ".");
        match (&*dots, empty || !part.contains(&b'%')) {
            (".", true) => {}
            ("..", true) => drop(done.pop()),
            _ if part.is_empty() && !empty => {}
            _ => done.push(part),
        }
    }
    done
}

/// Behind the host that two slashes begin.
fn after_host(raw: &[u8]) -> Vec<u8> {
    let is_slash = |byte: &u8| b"/\\".contains(byte);
    if raw.iter().take_while(|byte| is_slash(byte)).count() < 2 {
        return raw.to_vec();
    }
    let host = raw.iter().position(|byte| !is_slash(byte)).unwrap_or(raw.len());
    let path = raw[host..].iter().position(is_slash);
    path.map_or(b"/".to_vec(), |path| raw[host + path..].to_vec())
}

/// Writes a path in the form of the rules. With `undecoded`, the escape of a plain character stays three
/// characters.
fn written(parts: &[Vec<u8>], undecoded: bool) -> String {
    let mut text = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        text.push('/');
        let mut at = 0;
        while at < part.len() {
            let found = escape(&part[at..]);
            let byte = found.unwrap_or(part[at]);
            match found {
                Some(plain) if undecoded && super::paths::is_plain(plain) => {
                    text.push_str(&format!(
                        "%25{}",
                        String::from_utf8_lossy(&part[at + 1..at + 3])
                    ));
                }
                _ if super::paths::is_plain(byte) => text.push(char::from(byte)),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
            at += if found.is_some() { 3 } else { 1 };
        }
    }
    if text.is_empty() { "/".into() } else { text }
}
