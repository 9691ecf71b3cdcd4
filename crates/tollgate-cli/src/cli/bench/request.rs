//! The request of a load: the same for all callers but for the key.

use http::Method;
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
pub(super) struct LoadRequest {
    pub(super) method: Method,
    pub(super) path: KeyedText,
    pub(super) headers: Vec<(HeaderName, KeyedText)>,
    pub(super) body: KeyedText,
    /// Returns true if all requests are the same, whatever their key.
    pub(super) ignores_key: bool,
}

impl RequestArgs {
    /// The request to this target.
    pub(super) fn request(&self, target: &LoadTarget) -> Result<LoadRequest, String> {
        match target.protocol {
            LoadProtocol::Check => Ok(self.check()),
            LoadProtocol::Url => self.url_request(&target.path),
            LoadProtocol::Resp | LoadProtocol::Grpc => {
                Err(format!("bench cannot load {} yet", target.protocol.name()))
            }
        }
    }

    fn check(&self) -> LoadRequest {
        let mut body = Map::new();
        body.insert("user".into(), PLACEHOLDER.into());
        let texts =
            [("method", self.method.as_ref().map(Method::as_str)), ("path", self.path.as_deref())];
        for (name, text) in texts {
            if let Some(text) = text {
                body.insert(name.into(), text.into());
            }
        }
        if !self.headers.is_empty() {
            let fields =
                self.headers.iter().map(|(name, value)| (name.to_string(), value.clone().into()));
            body.insert("headers".into(), Value::Object(fields.collect()));
        }
        let json = (HeaderName::from_static("content-type"), KeyedText::new("application/json"));
        LoadRequest {
            method: Method::POST,
            path: KeyedText::new("/v1/check"),
            headers: vec![json],
            body: KeyedText::new(&Value::Object(body).to_string()),
            ignores_key: false,
        }
    }

    fn url_request(&self, path: &str) -> Result<LoadRequest, String> {
        if self.path.is_some() {
            return Err("--path is for checks: the URL of --target has a path of its own".into());
        }
        let path = KeyedText::new(path);
        let headers =
            self.headers.iter().map(|(name, value)| (name.clone(), KeyedText::new(value)));
        let headers: Vec<_> = headers.collect();
        let ignores_key = !path.has_key() && !headers.iter().any(|(_, value)| value.has_key());
        let method = self.method.clone().unwrap_or(Method::GET);
        Ok(LoadRequest { method, path, headers, body: KeyedText::new(""), ignores_key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(method: Option<Method>, path: Option<&str>, headers: &[&str]) -> RequestArgs {
        let headers = headers.iter().map(|text| header(text).unwrap()).collect();
        RequestArgs { method, path: path.map(String::from), headers }
    }

    #[test]
    fn the_key_stands_in_the_body_of_a_check_and_where_a_url_says() {
        let check = args(Some(Method::PUT), Some("/a\"b"), &["x-tenant={key}"]);
        let check = check.request(&"http://localhost".parse().unwrap()).unwrap();
        assert_eq!(
            check.body.with("bench-7"),
            r#"{"headers":{"x-tenant":"bench-7"},"method":"PUT","path":"/a\"b","user":"bench-7"}"#
        );
        assert_eq!((check.method, check.ignores_key), (Method::POST, false));
        let target = "http://localhost/u/{key}?k={key}".parse().unwrap();
        let url = args(None, None, &["x-user=a{key}b"]).request(&target).unwrap();
        assert_eq!(url.path.with("7"), "/u/7?k=7");
        assert_eq!(url.headers[0].1.with("7"), "a7b");
        assert!(!url.ignores_key);
        let same = args(None, None, &[]).request(&"http://localhost/x".parse().unwrap()).unwrap();
        assert!(same.ignores_key);
        let twice = args(None, Some("/y"), &[]).request(&"http://localhost/x".parse().unwrap());
        assert!(twice.unwrap_err().contains("--path is for checks"));
    }

    #[test]
    fn headers_are_valid() {
        for text in ["x", "=v", "a b=c", "x=\r\ny: z", "x=\u{7f}"] {
            assert!(header(text).is_err(), "{text:?}");
        }
    }
}
