//! The request of a load: the same for all callers but for the key.

use http::Method;
use std::sync::Arc;

use http::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::target::{LoadProtocol, LoadTarget};

/// The part of a text that stands for the key of a request.
const PLACEHOLDER: &str = "{key}";

/// A text with the key in some places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyedText(Vec<String>);

impl KeyedText {
    pub(super) fn new(text: &str) -> KeyedText {
        KeyedText(text.split(PLACEHOLDER).map(String::from).collect())
    }

    /// The text for this key.
    pub(super) fn with(&self, key: &str) -> String {
        self.0.join(key)
    }

    fn has_key(&self) -> bool {
        self.0.len() > 1
    }
}

/// Facts of the requests, from the command line.
#[derive(Debug, clap::Args)]
pub(super) struct RequestArgs {
    /// Method of the requests; a check without it has no method
    #[arg(long, value_name = "METHOD")]
    method: Option<Method>,

    /// Path in the checks; a URL has its own
    #[arg(long, value_name = "PATH")]
    path: Option<String>,

    /// Header of the requests, in which {key} stands for the caller; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(HeaderName, String)>,

    /// Numbers of CL.THROTTLE commands, such as "15 30 60", instead of TG.CHECK
    #[arg(long, value_name = "BURST COUNT SECONDS", value_parser = throttle)]
    throttle: Option<ThrottleNumbers>,

    /// Domain of grpc requests
    #[arg(long, value_name = "NAME", default_value = "tollgate")]
    domain: String,

    /// Entry of the descriptor of grpc requests; may be given several times; by default user={key}
    #[arg(long = "entry", value_name = "NAME=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
}

/// The numbers after the key of `CL.THROTTLE`, as they were written.
#[derive(Clone, Debug)]
struct ThrottleNumbers(Vec<String>);

fn throttle(text: &str) -> Result<ThrottleNumbers, String> {
    let numbers: Vec<String> = text.split_whitespace().map(String::from).collect();
    let are_numbers = numbers.iter().all(|number| number.parse::<u32>().is_ok());
    match (are_numbers, numbers.len()) {
        (true, 3 | 4) => Ok(ThrottleNumbers(numbers)),
        _ => Err("write burst, count and seconds, and if you like a quantity: \"15 30 60\"".into()),
    }
}

fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write a name and a value: user={key}".into()),
    }
}

fn header(text: &str) -> Result<(HeaderName, String), String> {
    const FORM: &str = "write a name and a value: x-api-key={key}";
    let (name, value) = text.split_once('=').ok_or(FORM)?;
    let name = name.parse::<HeaderName>().map_err(|_| FORM.to_string())?;
    match HeaderValue::from_str(value) {
        Ok(_) => Ok((name, value.into())),
        Err(_) => Err(FORM.into()),
    }
}

/// A request, with the key left open.
#[derive(Clone, Debug)]
pub(super) enum LoadRequest {
    Http(Arc<HttpLoadRequest>),
    /// The arguments of a command.
    Resp(Arc<[KeyedText]>),
    Grpc(Arc<GrpcLoadRequest>),
}

/// An HTTP request, with the key left open.
#[derive(Debug)]
pub(super) struct HttpLoadRequest {
    pub(super) method: Method,
    pub(super) path: KeyedText,
    pub(super) headers: Vec<(HeaderName, KeyedText)>,
    pub(super) body: KeyedText,
}

/// A `RateLimitRequest` with one descriptor, with the key left open.
#[derive(Debug)]
pub(super) struct GrpcLoadRequest {
    pub(super) domain: String,
    pub(super) entries: Vec<(String, KeyedText)>,
}

impl LoadRequest {
    /// Returns true if all requests are the same, whatever their key.
    pub(super) fn ignores_key(&self) -> bool {
        let has_key = match self {
            LoadRequest::Http(request) => {
                let mut headers = request.headers.iter();
                request.path.has_key()
                    || request.body.has_key()
                    || headers.any(|(_, value)| value.has_key())
            }
            LoadRequest::Resp(arguments) => arguments.iter().any(KeyedText::has_key),
            LoadRequest::Grpc(request) => request.entries.iter().any(|(_, value)| value.has_key()),
        };
        !has_key
    }
}

impl RequestArgs {
    /// The request to this target; an error if an option does not belong to its protocol.
    pub(super) fn request(&self, target: &LoadTarget) -> Result<LoadRequest, String> {
        let protocol = target.protocol;
        let has_facts = self.method.is_some() || self.path.is_some() || !self.headers.is_empty();
        if self.throttle.is_some() && (protocol != LoadProtocol::Resp || has_facts) {
            return Err("--throttle is for redis:// targets, without facts for rules".into());
        }
        if !self.entries.is_empty() && protocol != LoadProtocol::Grpc {
            return Err("--entry is for grpc:// targets".into());
        }
        if has_facts && protocol == LoadProtocol::Grpc {
            return Err(
                "a grpc request has no method, path and headers: write --entry path=/x".into()
            );
        }
        Ok(match protocol {
            LoadProtocol::Check => LoadRequest::Http(Arc::new(self.check())),
            LoadProtocol::Url => LoadRequest::Http(Arc::new(self.url_request(&target.path)?)),
            LoadProtocol::Resp => LoadRequest::Resp(self.command().into()),
            LoadProtocol::Grpc => LoadRequest::Grpc(Arc::new(self.descriptor())),
        })
    }

    /// Method and path, as far as they are given.
    fn facts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let method = self.method.as_ref().map(Method::as_str);
        let facts = [("method", method), ("path", self.path.as_deref())];
        facts.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    fn check(&self) -> HttpLoadRequest {
        let mut body = Map::new();
        body.insert("user".into(), PLACEHOLDER.into());
        body.extend(self.facts().map(|(name, value)| (name.into(), value.into())));
        if !self.headers.is_empty() {
            let fields = self.headers.iter();
            let fields = fields.map(|(name, value)| (name.to_string(), value.clone().into()));
            body.insert("headers".into(), Value::Object(fields.collect()));
        }
        let json = (HeaderName::from_static("content-type"), KeyedText::new("application/json"));
        HttpLoadRequest {
            method: Method::POST,
            path: KeyedText::new("/v1/check"),
            headers: vec![json],
            body: KeyedText::new(&Value::Object(body).to_string()),
        }
    }

    fn url_request(&self, path: &str) -> Result<HttpLoadRequest, String> {
        if self.path.is_some() {
            return Err("--path is for checks: the URL of --target has a path of its own".into());
        }
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), KeyedText::new(value)));
        Ok(HttpLoadRequest {
            method: self.method.clone().unwrap_or(Method::GET),
            path: KeyedText::new(path),
            headers: headers.collect(),
            body: KeyedText::new(""),
        })
    }

    fn command(&self) -> Vec<KeyedText> {
        let texts: Vec<String> = match &self.throttle {
            Some(numbers) => ["CL.THROTTLE", PLACEHOLDER]
                .map(String::from)
                .into_iter()
                .chain(numbers.0.clone())
                .collect(),
            None => {
                let facts = self.facts().flat_map(|(name, value)| [name.into(), value.into()]);
                let headers = self.headers.iter();
                let headers =
                    headers.flat_map(|(name, value)| [format!("header.{name}"), value.clone()]);
                let user = ["TG.CHECK", "user", PLACEHOLDER].map(String::from);
                user.into_iter().chain(facts).chain(headers).collect()
            }
        };
        texts.iter().map(|text| KeyedText::new(text)).collect()
    }

    fn descriptor(&self) -> GrpcLoadRequest {
        let user = [("user".to_string(), PLACEHOLDER.to_string())];
        let entries = if self.entries.is_empty() { &user[..] } else { &self.entries };
        let entries = entries.iter().map(|(name, value)| (name.clone(), KeyedText::new(value)));
        GrpcLoadRequest { domain: self.domain.clone(), entries: entries.collect() }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct OnlyRequestArgs {
        #[command(flatten)]
        request: RequestArgs,
    }

    /// The request to `target` with these options, or the error.
    fn request(target: &str, options: &[&str]) -> Result<LoadRequest, String> {
        let args = OnlyRequestArgs::try_parse_from([&["bench"], options].concat());
        let args = args.map_err(|error| error.to_string())?;
        args.request.request(&target.parse().unwrap())
    }

    fn http(target: &str, options: &[&str]) -> (Arc<HttpLoadRequest>, bool) {
        let request = request(target, options).unwrap();
        let ignores_key = request.ignores_key();
        let LoadRequest::Http(request) = request else { panic!("{request:?}") };
        (request, ignores_key)
    }

    #[test]
    fn the_key_stands_in_the_body_of_a_check_and_where_a_url_says() {
        let options = ["--method", "PUT", "--path", "/a\"b", "--header", "x-tenant={key}"];
        let (check, ignores_key) = http("http://localhost", &options);
        assert_eq!(
            check.body.with("bench-7"),
            r#"{"headers":{"x-tenant":"bench-7"},"method":"PUT","path":"/a\"b","user":"bench-7"}"#
        );
        assert_eq!((&check.method, ignores_key), (&Method::POST, false));
        let (url, ignores_key) =
            http("http://localhost/u/{key}?k={key}", &["--header", "x-user=a{key}b"]);
        assert_eq!(url.path.with("7"), "/u/7?k=7");
        assert_eq!((&*url.headers[0].1.with("7"), ignores_key), ("a7b", false));
        assert!(http("http://localhost/x", &[]).1, "all requests are the same");
    }

    #[test]
    fn commands_and_descriptors_name_the_key() {
        let rows: [(&[&str], &[&str]); 3] = [
            (&[], &["TG.CHECK", "user", "7"]),
            (
                &["--path", "/x", "--header", "x-a={key}"],
                &["TG.CHECK", "user", "7", "path", "/x", "header.x-a", "7"],
            ),
            (&["--throttle", "15 30 60"], &["CL.THROTTLE", "7", "15", "30", "60"]),
        ];
        for (options, want) in rows {
            let request = request("redis://localhost", options).unwrap();
            assert!(!request.ignores_key());
            let LoadRequest::Resp(arguments) = request else { panic!("{request:?}") };
            let found: Vec<String> = arguments.iter().map(|text| text.with("7")).collect();
            assert_eq!(found, want);
        }
        let rows: [(&[&str], &str, bool); 2] =
            [(&[], "user=7", false), (&["--entry", "a=b", "--entry", "c="], "a=b c=", true)];
        for (options, want, ignores_key) in rows {
            let request = request("grpc://localhost", options).unwrap();
            assert_eq!(request.ignores_key(), ignores_key);
            let LoadRequest::Grpc(request) = request else { panic!("{request:?}") };
            let entries = request.entries.iter();
            let found: Vec<_> =
                entries.map(|(name, value)| format!("{name}={}", value.with("7"))).collect();
            assert_eq!((&*request.domain, &*found.join(" ")), ("tollgate", want));
        }
    }

    #[test]
    fn options_belong_to_protocols() {
        let rows: [(&str, &[&str], &str); 10] = [
            ("http://localhost/x", &["--path", "/y"], "--path is for checks"),
            ("http://localhost", &["--throttle", "1 2 3"], "--throttle is for redis://"),
            ("redis://localhost", &["--throttle", "1 2 3", "--path", "/"], "--throttle is for"),
            ("http://localhost", &["--entry", "a=b"], "--entry is for grpc://"),
            ("grpc://localhost", &["--path", "/"], "a grpc request has no"),
            ("redis://localhost", &["--throttle", "1 2"], "write burst, count and seconds"),
            ("redis://localhost", &["--throttle", "1 2 x"], "write burst, count and seconds"),
            ("http://localhost", &["--header", "x"], "write a name and a value"),
            ("http://localhost", &["--header", "a b=c"], "write a name and a value"),
            ("http://localhost", &["--header", "x=\r\ny: z"], "write a name and a value"),
        ];
        for (target, options, want) in rows {
            let problem = request(target, options).unwrap_err();
            assert!(problem.contains(want), "{options:?}: {problem}");
        }
    }
}
