//! Readings of a path by families of servers: what counts as a slash, what is cut off, and how `.`
//! and `..` are resolved.

use super::{PLAIN, next_byte, push_byte};

/// One way to read a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathReading {
    pub(super) start: PathStart,
    pub(super) behind: FrontProxy,
    /// `%2F` is a slash.
    pub(super) encoded_slash: bool,
    pub(super) backslash: Backslash,
    /// Escapes stay as they are: `/%61` is not `/a`.
    pub(super) undecoded: bool,
    pub(super) params: PathParams,
    pub(super) dots: DotSegments,
}

/// The beginning and the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathStart {
    /// After the host of a full URL, and before a fragment.
    Plain,
    /// Behind the name that follows two slashes: to a server that resolves a target like a link of
    /// a web page, `//name/path` is the path of another host.
    AfterHost,
    /// A fragment is part of it.
    WithFragment,
}

/// A proxy in front of the server that normalizes the path and passes on the result. A segment that
/// the proxy removes for `..` may be `..` itself to the server behind it, with parameters or an
/// escaped slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrontProxy {
    NoProxy,
    /// One that resolves: Envoy, Traefik.
    Resolving,
    /// One that decodes and resolves: nginx whose `proxy_pass` has a path.
    Decoding,
}

impl FrontProxy {
    fn reading(self) -> Option<PathReading> {
        match self {
            FrontProxy::NoProxy => None,
            FrontProxy::Resolving => Some(NORMAL),
            FrontProxy::Decoding => Some(PathReading { encoded_slash: true, ..NORMAL }),
        }
    }
}

/// The meaning of `\`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backslash {
    Kept,
    /// A slash, if it is not escaped.
    Slash,
    /// A slash, and so is `%5C`.
    AnySlash,
}

/// The treatment of the parameters of segments, `;x=1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathParams {
    Kept,
    /// Cut off before escapes are decoded: they end at a slash that is not escaped.
    Cut,
}

/// The treatment of `.` and `..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DotSegments {
    Resolved,
    /// The same, where `..` also takes back an empty segment.
    ResolvedWithEmpty,
    Kept,
}

/// The normal form.
const NORMAL: PathReading = PathReading {
    start: PathStart::Plain,
    behind: FrontProxy::NoProxy,
    encoded_slash: false,
    backslash: Backslash::Kept,
    undecoded: false,
    params: PathParams::Kept,
    dots: DotSegments::Resolved,
};

/// All readings; the normal form first. `docs/guides/rules.md` says which servers they stand for.
pub(super) const READINGS: [PathReading; 30] = [
    NORMAL,
    // Decoded segment by segment, never resolved: Go routers that use the raw path.
    PathReading { dots: DotSegments::Kept, ..NORMAL },
    // As sent: Express, and servers that compare the target itself.
    PathReading { undecoded: true, dots: DotSegments::Kept, ..NORMAL },
    // Decoded, then resolved: nginx, Apache httpd with `AllowEncodedSlashes On`.
    PathReading { encoded_slash: true, ..NORMAL },
    // Decoded and never resolved: uvicorn, gunicorn and what runs on them, PHP.
    PathReading { encoded_slash: true, dots: DotSegments::Kept, ..NORMAL },
    // As RFC 3986 has it: Envoy without `merge_slashes`.
    PathReading { dots: DotSegments::ResolvedWithEmpty, ..NORMAL },
    // As browsers have it: Node and others that make a `URL` of the target, and may decode its path.
    PathReading { backslash: Backslash::Slash, dots: DotSegments::ResolvedWithEmpty, ..NORMAL },
    PathReading {
        undecoded: true,
        backslash: Backslash::Slash,
        dots: DotSegments::ResolvedWithEmpty,
        ..NORMAL
    },
    PathReading {
        start: PathStart::AfterHost,
        backslash: Backslash::Slash,
        dots: DotSegments::ResolvedWithEmpty,
        ..NORMAL
    },
    PathReading {
        start: PathStart::AfterHost,
        undecoded: true,
        backslash: Backslash::Slash,
        dots: DotSegments::ResolvedWithEmpty,
        ..NORMAL
    },
    // Node's older parser, `url.parse`, takes what follows `//user@` for a host too, and resolves nothing.
    PathReading { backslash: Backslash::Slash, dots: DotSegments::Kept, ..NORMAL },
    PathReading { undecoded: true, backslash: Backslash::Slash, dots: DotSegments::Kept, ..NORMAL },
    PathReading {
        start: PathStart::AfterHost,
        backslash: Backslash::Slash,
        dots: DotSegments::Kept,
        ..NORMAL
    },
    PathReading {
        start: PathStart::AfterHost,
        undecoded: true,
        backslash: Backslash::Slash,
        dots: DotSegments::Kept,
        ..NORMAL
    },
    // Servlets: Tomcat, Jetty, Undertow, as they are configured to accept `%2F` and `\`.
    PathReading { params: PathParams::Cut, ..NORMAL },
    PathReading { params: PathParams::Cut, encoded_slash: true, ..NORMAL },
    PathReading {
        params: PathParams::Cut,
        encoded_slash: true,
        backslash: Backslash::AnySlash,
        ..NORMAL
    },
    // The same never resolved: Spring WebFlux.
    PathReading { params: PathParams::Cut, dots: DotSegments::Kept, ..NORMAL },
    // IIS, ASP.NET.
    PathReading { backslash: Backslash::AnySlash, ..NORMAL },
    // Those that decode, servlets and IIS behind a proxy that resolves.
    PathReading {
        behind: FrontProxy::Resolving,
        encoded_slash: true,
        dots: DotSegments::Kept,
        ..NORMAL
    },
    PathReading { behind: FrontProxy::Resolving, encoded_slash: true, ..NORMAL },
    PathReading { behind: FrontProxy::Resolving, params: PathParams::Cut, ..NORMAL },
    PathReading {
        behind: FrontProxy::Resolving,
        params: PathParams::Cut,
        encoded_slash: true,
        ..NORMAL
    },
    PathReading {
        behind: FrontProxy::Resolving,
        params: PathParams::Cut,
        encoded_slash: true,
        backslash: Backslash::AnySlash,
        ..NORMAL
    },
    PathReading { behind: FrontProxy::Resolving, backslash: Backslash::AnySlash, ..NORMAL },
    // Servlets and IIS behind a proxy that decodes.
    PathReading { behind: FrontProxy::Decoding, params: PathParams::Cut, ..NORMAL },
    PathReading {
        behind: FrontProxy::Decoding,
        params: PathParams::Cut,
        backslash: Backslash::AnySlash,
        ..NORMAL
    },
    PathReading { behind: FrontProxy::Decoding, backslash: Backslash::AnySlash, ..NORMAL },
    // uvicorn with h11, Go: what is sent as a fragment is part of the path.
    PathReading { start: PathStart::WithFragment, dots: DotSegments::Kept, ..NORMAL },
    PathReading {
        start: PathStart::WithFragment,
        encoded_slash: true,
        dots: DotSegments::Kept,
        ..NORMAL
    },
];

/// The slashes that a path has and its spelling has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DroppedSlashes {
    None,
    /// One at the end.
    Last,
    /// Doubled ones.
    Doubled,
}

/// Features of a path that readings treat differently. Readings of features that are missing need
/// not be tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PathFeatures {
    encoded_slash: bool,
    /// One that is not escaped.
    backslash: bool,
    encoded_backslash: bool,
    params: bool,
    /// A segment that begins with a dot.
    dots: bool,
    /// Two slashes in a row.
    doubled: bool,
    /// Two slashes at the beginning.
    host: bool,
    fragment: bool,
    /// An escape of a character that needs none.
    escaped_plain: bool,
}

impl PathFeatures {
    pub(super) fn of(path: &str) -> PathFeatures {
        let is_slash = |byte: u8| matches!(byte, b'/' | b'\\');
        let mut odd = PathFeatures {
            host: path.len() > 1 && path.bytes().take(2).all(is_slash),
            ..PathFeatures::default()
        };
        let (mut rest, mut after_slash) = (path.as_bytes(), true);
        while let Some((byte, escaped, after)) = next_byte(rest) {
            match byte {
                b'/' => odd.encoded_slash |= escaped,
                b'\\' if escaped => odd.encoded_backslash = true,
                b'\\' => odd.backslash = true,
                b';' => odd.params = true,
                b'.' => odd.dots |= after_slash,
                _ => {}
            }
            odd.escaped_plain |= escaped && PLAIN[usize::from(byte)];
            odd.doubled |= is_slash(byte) && after_slash && rest.len() < path.len();
            after_slash = is_slash(byte);
            rest = after;
        }
        odd
    }

    pub(super) fn with_fragment(self, fragment: bool) -> PathFeatures {
        PathFeatures { fragment, ..self }
    }

    /// Reduces a reading to the features of this path; `None` if it adds nothing.
    pub(super) fn simplify(self, reading: PathReading) -> Option<PathReading> {
        let wanted = match reading.start {
            PathStart::Plain => true,
            // Without dots there is nothing to resolve.
            PathStart::AfterHost => self.host && (self.dots || reading.dots != DotSegments::Kept),
            PathStart::WithFragment => self.fragment,
        };
        // A host or a fragment may have anything in it.
        let all = reading.start != PathStart::Plain;
        let encoded_slash = reading.encoded_slash && (self.encoded_slash || all);
        let undecoded = reading.undecoded && (self.escaped_plain || all);
        let dots = match reading.dots {
            DotSegments::ResolvedWithEmpty if !self.doubled && !all => DotSegments::Resolved,
            dots => dots,
        };
        let behind = match reading.behind {
            FrontProxy::Decoding if self.encoded_slash => FrontProxy::Decoding,
            FrontProxy::Decoding if self.dots || self.params => FrontProxy::Resolving,
            FrontProxy::Resolving if self.dots => FrontProxy::Resolving,
            _ => FrontProxy::NoProxy,
        };
        wanted.then_some(PathReading {
            start: reading.start,
            behind,
            encoded_slash,
            backslash: match reading.backslash {
                _ if all => reading.backslash,
                // What a proxy passes on may be escaped.
                Backslash::AnySlash if self.encoded_backslash => Backslash::AnySlash,
                Backslash::AnySlash if self.backslash && behind != FrontProxy::NoProxy => {
                    Backslash::AnySlash
                }
                Backslash::Slash | Backslash::AnySlash if self.backslash => Backslash::Slash,
                _ => Backslash::Kept,
            },
            undecoded,
            params: if self.params || all { reading.params } else { PathParams::Kept },
            // What is not decoded has dots of two kinds.
            dots: if self.dots || undecoded || all { dots } else { DotSegments::Resolved },
        })
    }
}

/// A path in its normal form.
pub(super) fn normal(path: &str) -> (String, DroppedSlashes) {
    NORMAL.read(path)
}

/// A path that people write as part of a key: with exactly the escapes that requests' paths have, and
/// nothing resolved, because keys count some paths that way.
pub(crate) fn key_text(path: &str) -> String {
    PathReading { dots: DotSegments::Kept, ..NORMAL }.read(path).0
}

impl PathReading {
    /// A path as this reading has it, in normal escapes, and the slashes that went.
    pub(super) fn read(self, path: &str) -> (String, DroppedSlashes) {
        if let Some(proxy) = self.behind.reading() {
            let (passed_on, slashes) = proxy.read(path);
            let (text, more) = PathReading { behind: FrontProxy::NoProxy, ..self }.read(&passed_on);
            return (text, slashes.max(more));
        }
        let mut writer = PathWriter::new(self.dots, path.len());
        let (mut rest, mut cutting) = (self.begin(path).as_bytes(), false);
        while let Some((byte, escaped, after)) = next_byte(rest) {
            let digits = &rest[rest.len().min(1)..rest.len() - after.len()];
            rest = after;
            let ends = match byte {
                b'/' => !escaped || self.encoded_slash,
                b'\\' => match self.backslash {
                    Backslash::Kept => false,
                    Backslash::Slash => !escaped,
                    Backslash::AnySlash => true,
                },
                _ => false,
            };
            cutting &= byte != b'/' || escaped;
            if cutting || self.params == PathParams::Cut && byte == b';' && !escaped {
                cutting = true;
            } else if ends {
                writer.end_segment();
            } else if escaped && self.keeps_escape(byte) {
                push_byte(&mut writer.text, b'%');
                digits.iter().for_each(|digit| writer.text.push(char::from(*digit)));
            } else {
                push_byte(&mut writer.text, byte);
            }
        }
        writer.finish()
    }

    /// Returns true if an escape of this byte stays an escape. Characters that need one are escaped
    /// in every spelling, and a server that resolves an escaped dot treats it as a dot.
    fn keeps_escape(self, byte: u8) -> bool {
        let is_dot = byte == b'.' && self.dots != DotSegments::Kept;
        self.undecoded && PLAIN[usize::from(byte)] && !is_dot
    }

    fn begin(self, path: &str) -> &str {
        if self.start != PathStart::AfterHost {
            return path;
        }
        let is_slash = ['/', '\\'];
        let host = path.trim_start_matches(is_slash);
        host.find(is_slash).map_or("", |end| &host[end..])
    }
}

/// Writes a path segment by segment.
struct PathWriter {
    dots: DotSegments,
    text: String,
    /// The position of the slash of the segment that is being written.
    begin: usize,
    /// True before the first slash: an empty text there is not an empty segment.
    at_start: bool,
    /// The last segment was empty.
    after_empty: bool,
    /// The last segment was a dot or two that were resolved.
    after_dots: bool,
    doubled: bool,
}

impl PathWriter {
    fn new(dots: DotSegments, len: usize) -> PathWriter {
        let mut text = String::with_capacity(len + 2);
        text.push('/');
        PathWriter {
            dots,
            text,
            begin: 0,
            at_start: true,
            after_empty: false,
            after_dots: false,
            doubled: false,
        }
    }

    fn end_segment(&mut self) {
        self.doubled |= self.after_empty;
        (self.after_empty, self.after_dots) = (false, false);
        let resolves = self.dots != DotSegments::Kept;
        match &self.text[self.begin + 1..] {
            "" => {
                self.after_empty = !self.at_start;
                if self.at_start || self.dots != DotSegments::ResolvedWithEmpty {
                    self.text.truncate(self.begin);
                }
            }
            "." if resolves => {
                self.after_dots = true;
                self.text.truncate(self.begin);
            }
            ".." if resolves => {
                self.after_dots = true;
                let up = self.text[..self.begin].rfind('/').unwrap_or(0);
                self.text.truncate(up);
            }
            _ => {}
        }
        self.at_start = false;
        self.begin = self.text.len();
        self.text.push('/');
    }

    fn finish(mut self) -> (String, DroppedSlashes) {
        self.end_segment();
        self.text.truncate(self.begin);
        if self.dots == DotSegments::ResolvedWithEmpty {
            self.text = without_empty(&self.text);
        }
        let slashes = match (self.doubled, self.after_empty || self.after_dots) {
            (true, _) => DroppedSlashes::Doubled,
            (false, true) if !self.text.is_empty() => DroppedSlashes::Last,
            (false, _) => DroppedSlashes::None,
        };
        if self.text.is_empty() {
            self.text.push('/');
        }
        (self.text, slashes)
    }
}

fn without_empty(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        text.push('/');
        text.push_str(segment);
    }
    text
}
