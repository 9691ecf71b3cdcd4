//! The fields that tell an upstream about the client: `X-Forwarded-*`, `Forwarded` (RFC 7239) and `Via`.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use http::Version;
use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, VIA};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The values of these fields for the requests of one connection, made once.
pub(super) struct ForwardedValues {
    /// The peer in `X-Forwarded-For`.
    address: HeaderValue,
    /// The peer in `Forwarded`.
    node: String,
    scheme: &'static str,
    /// The last host of a request, and the element of `Forwarded` for it: nearly all requests of a connection have the
    /// same.
    element: Mutex<Option<(HeaderValue, HeaderValue)>>,
}

impl ForwardedValues {
    /// The values for a connection from `peer`.
    pub(super) fn new(peer: IpAddr, is_tls: bool) -> ForwardedValues {
        let peer = peer.to_canonical();
        ForwardedValues {
            address: HeaderValue::try_from(peer.to_string()).expect("an address is visible text"),
            node: match peer {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("\"[{address}]\""),
            },
            scheme: if is_tls { "https" } else { "http" },
            element: Mutex::default(),
        }
    }

    /// Writes the fields of a request. The lists of a trusted peer are continued; of all others they have been removed.
    pub(super) fn write(&self, fields: &mut HeaderMap) {
        let host = fields.get(HOST).cloned();
        let (has_addresses, has_elements) =
            (fields.contains_key(X_FORWARDED_FOR), fields.contains_key(FORWARDED));
        // A new list begins with the peer, which would be taken for the client if the other list names one before it.
        if has_addresses || !has_elements {
            continue_list(fields, X_FORWARDED_FOR, self.address.clone());
        }
        if has_elements || !has_addresses {
            continue_list(fields, FORWARDED, self.element(host.as_ref()));
        }
        let scheme = HeaderValue::from_static(self.scheme);
        fields.entry(X_FORWARDED_PROTO).or_insert(scheme);
        if let Some(host) = host {
            fields.entry(X_FORWARDED_HOST).or_insert(host);
        }
    }

    /// Forgets the last host, which shares the memory of its request's head.
    pub(super) fn forget_host(&self) {
        *self.element.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The element of `Forwarded` for a request to this host.
    fn element(&self, host: Option<&HeaderValue>) -> HeaderValue {
        let (node, scheme) = (&self.node, self.scheme);
        let Some(host) = host else { return field_value(format!("for={node};proto={scheme}")) };
        let mut last = self.element.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, element)) = &*last
            && known == host
        {
            return element.clone();
        }
        let name = host.to_str().unwrap_or_default();
        // A port or an address needs quotes; a host that passed the checks has no quotes of its own.
        let element = match name.contains([':', '[']) {
            true => field_value(format!("for={node};host=\"{name}\";proto={scheme}")),
            false => field_value(format!("for={node};host={name};proto={scheme}")),
        };
        *last = Some((host.clone(), element.clone()));
        element
    }
}

fn field_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("addresses and hosts are visible text")
}

/// Adds a value to the end of a list. All of it becomes one line, because some servers read only the first.
fn continue_list(fields: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    let mut list = Vec::new();
    for line in fields.get_all(&name) {
        list.extend_from_slice(line.as_bytes());
        list.extend_from_slice(b", ");
    }
    if list.is_empty() {
        fields.insert(name, value);
        return;
    }
    list.extend_from_slice(value.as_bytes());
    let list = HeaderValue::from_bytes(&list).expect("values joined by commas are a value");
    fields.insert(name, list);
}

/// Adds the gateway to the `Via` of a message that was received in this version.
pub(super) fn add_via(fields: &mut HeaderMap, received: Version) {
    let entry = match received {
        Version::HTTP_10 => "1.0 tollgate",
        Version::HTTP_2 => "2.0 tollgate",
        _ => "1.1 tollgate",
    };
    fields.append(VIA, HeaderValue::from_static(entry));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::gateway::request_check::VIA_NAME;

    fn written(peer: &str, is_tls: bool, fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        ForwardedValues::new(peer.parse().unwrap(), is_tls).write(&mut map);
        map
    }

    #[test]
    fn the_client_is_described() {
        let rows = [
            ("192.0.2.1", false, "h", "192.0.2.1", "for=192.0.2.1;host=h;proto=http"),
            ("192.0.2.1", true, "h:80", "192.0.2.1", "for=192.0.2.1;host=\"h:80\";proto=https"),
            ("2001:db8::1", false, "h", "2001:db8::1", "for=\"[2001:db8::1]\";host=h;proto=http"),
            ("::ffff:192.0.2.1", false, "h", "192.0.2.1", "for=192.0.2.1;host=h;proto=http"),
            ("::1", false, "[::1]", "::1", "for=\"[::1]\";host=\"[::1]\";proto=http"),
        ];
        for (peer, is_tls, host, address, element) in rows {
            let fields = written(peer, is_tls, &[("host", host)]);
            assert_eq!(fields[X_FORWARDED_FOR], address);
            assert_eq!(fields[FORWARDED], element);
            assert_eq!(fields[X_FORWARDED_HOST], host);
            assert_eq!(fields[X_FORWARDED_PROTO], if is_tls { "https" } else { "http" });
        }
        let fields = written("192.0.2.1", false, &[]);
        assert_eq!(fields[FORWARDED], "for=192.0.2.1;proto=http");
        assert!(!fields.contains_key(X_FORWARDED_HOST));
    }

    #[test]
    fn lists_of_a_trusted_peer_are_continued_in_one_line() {
        let fields = written(
            "10.0.0.1",
            false,
            &[
                ("host", "inner"),
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-for", "192.0.2.2, 192.0.2.3"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "outer"),
                ("forwarded", "for=192.0.2.1"),
            ],
        );
        assert_eq!(fields[X_FORWARDED_FOR], "192.0.2.1, 192.0.2.2, 192.0.2.3, 10.0.0.1");
        assert_eq!(fields[FORWARDED], "for=192.0.2.1, for=10.0.0.1;host=inner;proto=http");
        assert_eq!(fields[X_FORWARDED_PROTO], "https");
        assert_eq!(fields[X_FORWARDED_HOST], "outer");
        assert_eq!(fields.len(), fields.keys_len(), "one line each");
    }

    #[test]
    fn a_list_that_the_peer_did_not_send_does_not_name_the_peer_as_the_client() {
        let fields = written("10.0.0.1", false, &[("x-forwarded-for", "192.0.2.1")]);
        assert!(!fields.contains_key(FORWARDED));
        let fields = written("10.0.0.1", false, &[("forwarded", "for=192.0.2.1")]);
        assert!(!fields.contains_key(X_FORWARDED_FOR));
    }

    #[test]
    fn the_host_of_each_request_counts() {
        let values = ForwardedValues::new("192.0.2.1".parse().unwrap(), false);
        for host in ["a", "a", "b", "a:1"] {
            let mut fields = HeaderMap::new();
            fields.insert(HOST, HeaderValue::from_static(host));
            values.write(&mut fields);
            let element = fields[FORWARDED].to_str().unwrap();
            assert!(element.contains(host), "{host}: {element}");
            assert_eq!(fields[X_FORWARDED_HOST], host);
        }
    }

    #[test]
    fn via_names_the_received_version() {
        let mut fields = HeaderMap::new();
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            add_via(&mut fields, version);
        }
        let entries: Vec<_> = fields.get_all(VIA).iter().collect();
        assert_eq!(entries, ["1.0 tollgate", "1.1 tollgate", "2.0 tollgate"]);
        assert!(entries.iter().all(|entry| entry.to_str().unwrap().ends_with(VIA_NAME)));
    }
}
