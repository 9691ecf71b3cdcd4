//! Header fields that say who the client is, or what it asked for. Servers believe them, so they pass only from peers
//! that the rules trust.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::HeaderName;
use tollgate_rules::{Identify, RuleSet, confusable_header_name};

/// Fields that proxies and content delivery networks describe a request with, and that neither begin nor end like one of
/// the lists below.
const PROXY_FIELDS: [&str; 26] = [
    "cf-ew-via",
    "cf-ipcountry",
    "cf-pseudo-ipv4",
    "cf-visitor",
    "cf-worker",
    "fastly-ff",
    "fastly-ssl",
    "fly-forwarded-port",
    "fly-forwarded-proto",
    "fly-forwarded-ssl",
    "forwarded",
    "from-ip",
    "front-end-https",
    "remote-user",
    "x-amzn-oidc-accesstoken",
    "x-amzn-oidc-data",
    "x-amzn-oidc-identity",
    "x-country-code",
    "x-custom-ip-authorization",
    "x-envoy-internal",
    "x-host",
    "x-ip",
    "x-proxyuser-ip",
    "x-remote-user",
    // Some frameworks serve the path in it instead of the one that was counted.
    "x-http-destinationurl",
    "x-rewrite-url",
];

/// Beginnings of further names of such fields.
const PROXY_FIELD_PREFIXES: [&str; 14] = [
    "cloudfront-",
    "incap-",
    "x-akamai-",
    "x-appengine-",
    "x-appservice-",
    "x-arr-",
    "x-azure-",
    "x-envoy-original",
    "x-forwarded",
    "x-goog-authenticated-user-",
    "x-ms-client-principal",
    "x-nf-",
    "x-original",
    "x-vercel-",
];

/// Ends of further names: each vendor has a name of its own for the client's address, and new ones follow the old.
const PROXY_FIELD_SUFFIXES: [&str; 27] = [
    "caller-ip",
    "client-addr",
    "client-address",
    "client-ip",
    "client-ipv6",
    "client-port",
    "client-cert",
    "client-verify",
    "clientip",
    "connecting-ip",
    "connecting-ipv6",
    "connection-ip",
    "external-address",
    "forward-for",
    "forwarded-for",
    "forwarded-for-ip",
    "originating-ip",
    "peer-ip",
    "real-ip",
    "remote-addr",
    "remote-address",
    "remote-ip",
    "socketip",
    "source-ip",
    "src-ip",
    "true-ip",
    "user-ip",
];

/// Beginning of the names that only Tollgate may send.
const OWN_FIELD_PREFIX: &str = "x-tollgate-";

/// Fields that decide where a message ends, or whom it is from and to.
const MESSAGE_FIELDS: [&str; 9] = [
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "expect",
    "host",
    "transfer-encoding",
    "x-request-id",
];

/// Removes the fields that a client may not send: those of proxies and of identity unless its peer is trusted, and from
/// everybody those that servers could mistake for one of them.
pub(super) fn remove_forged(fields: &mut HeaderMap, identify: &Identify, is_trusted: bool) {
    let is_forged = |name: &&HeaderName| is_forged(name.as_str(), identify, is_trusted);
    let forged: Vec<HeaderName> = fields.keys().filter(is_forged).cloned().collect();
    for name in forged {
        fields.remove(name);
    }
}

/// Removes the fields that servers could take for one that rules look at, before anything is decided by it.
pub(super) fn remove_mistakable(fields: &mut HeaderMap, rules: &RuleSet) {
    if !rules.reads_headers() {
        return;
    }
    let is_mistakable = |name: &&HeaderName| rules.is_mistakable_header(name.as_str());
    let mistakable: Vec<HeaderName> = fields.keys().filter(is_mistakable).cloned().collect();
    for name in mistakable {
        fields.remove(name);
    }
}

/// Removes the trailers that a server could take for a header field that means something here, or that rules look at.
pub(super) fn remove_from_trailers(trailers: &mut HeaderMap, rules: &RuleSet) {
    let identify = &rules.settings().identify;
    let is_forged = |name: &&HeaderName| {
        let name = name.as_str();
        is_protected(name, identify)
            || is_forged(name, identify, false)
            || rules.is_mistakable_trailer(name)
    };
    let forged: Vec<HeaderName> = trailers.keys().filter(is_forged).cloned().collect();
    for name in forged {
        trailers.remove(name);
    }
}

/// Returns true if a client has no reason to name this field in `Connection` but to make a proxy remove it.
pub(super) fn is_protected(name: &str, identify: &Identify) -> bool {
    MESSAGE_FIELDS.contains(&name) || is_of_proxies(name) || identify.is_identity_header(name)
}

fn is_forged(name: &str, identify: &Identify, is_trusted: bool) -> bool {
    if !is_trusted && (is_of_proxies(name) || identify.is_claim_header(name)) {
        return true;
    }
    // CGI programs see the field `Proxy` as the variable HTTP_PROXY.
    name.starts_with(OWN_FIELD_PREFIX) || name == "proxy" || is_mistakable(name, identify)
}

/// Returns true for names like `x_forwarded_for`: CGI, WSGI and others turn all such characters into underscores, and
/// cannot tell it from `x-forwarded-for` then.
fn is_mistakable(name: &str, identify: &Identify) -> bool {
    match confusable_header_name(name) {
        Cow::Borrowed(_) => false,
        Cow::Owned(plain) => {
            let is_other = !identify.is_identity_header(name);
            is_other && (is_protected(&plain, identify) || plain.starts_with(OWN_FIELD_PREFIX))
        }
    }
}

fn is_of_proxies(name: &str) -> bool {
    let is_listed = match name.as_bytes().first() {
        // None of the names begins with another letter: most fields of a request are told by their first.
        Some(b'c' | b'f' | b'i' | b'r' | b'x') => {
            PROXY_FIELDS.contains(&name)
                || PROXY_FIELD_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        }
        _ => false,
    };
    is_listed || ends_like_address(name)
}

/// Returns true for names that end as fields with the client's address do, told by their last two letters at first.
fn ends_like_address(name: &str) -> bool {
    let [.., before, last] = name.as_bytes() else { return false };
    let may_be = matches!(
        (before, last),
        (b'i', b'p')
            | (b'v', b'6')
            | (b'o' | b'd', b'r')
            | (b's', b's')
            | (b'r', b't')
            | (b'f', b'y')
    );
    may_be && PROXY_FIELD_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tollgate_rules::identify::{AddressSource, UserSource};

    use super::*;

    fn identify() -> Identify {
        Identify {
            user: UserSource::Header("x-user-id".into()),
            tier_header: Some("x_tier".into()),
            address: AddressSource::Header("x-edge".into()),
            api_key_header: Some("x-api-key".into()),
            ..Identify::default()
        }
    }

    #[test]
    fn strangers_cannot_say_who_they_are_and_nobody_in_odd_spellings() {
        // Name | removed from strangers, from trusted peers
        let rows = [
            ("x-forwarded-for", true, false),
            ("x-forwarded-client-cert", true, false),
            ("x-forwarded", true, false),
            ("x-original-url", true, false),
            ("x-rewrite-url", true, false),
            ("forwarded", true, false),
            ("x-real-ip", true, false),
            ("true-client-ip", true, false),
            ("cf-connecting-ip", true, false),
            ("x-user-id", true, false),
            ("x_tier", true, false),
            ("x-edge", true, false),
            ("x-api-key", false, false),
            ("authorization", false, false),
            ("cookie", false, false),
            ("x-request-id", false, false),
            ("user-agent", false, false),
            ("x-forward", false, false),
            ("x_custom", false, false),
            ("x-tollgate-user", true, true),
            ("x_tollgate_user", true, true),
            ("proxy", true, true),
            ("x_forwarded_for", true, true),
            ("x.forwarded.for", true, true),
            ("x-real_ip", true, true),
            ("x_user_id", true, true),
            ("x_api_key", true, true),
            ("content_length", true, true),
            ("transfer_encoding", true, true),
        ];
        for (name, from_strangers, from_trusted) in rows {
            for (is_trusted, removed) in [(false, from_strangers), (true, from_trusted)] {
                let mut fields = HeaderMap::new();
                fields.append(HeaderName::from_static(name), HeaderValue::from_static("1"));
                fields.append(HeaderName::from_static(name), HeaderValue::from_static("2"));
                remove_forged(&mut fields, &identify(), is_trusted);
                assert_eq!(fields.is_empty(), removed, "{name}, trusted: {is_trusted}");
            }
        }
    }

    #[test]
    fn every_listed_field_is_found_by_its_first_letter() {
        let listed = PROXY_FIELDS.into_iter().chain(PROXY_FIELD_PREFIXES);
        for name in listed.chain(PROXY_FIELD_SUFFIXES) {
            assert!(is_of_proxies(name), "{name}");
            assert!(is_protected(name, &identify()), "{name}");
        }
    }

    #[test]
    fn no_vendor_is_forgotten() {
        let names = "ali-cdn-real-ip ar-real-ip cdn-client-ip cdn-real-ip cdn-src-ip cf-connecting-ip \
            cf-connecting-ipv6 cf-ipcountry cf-pseudo-ipv4 cf-visitor client-ip cloudfront-forwarded-proto \
            cloudfront-viewer-address cluster-client-ip do-connecting-ip eo-client-ip eo-connecting-ip \
            fastly-client-ip fly-client-ip fly-forwarded-proto forwarded forwarded-for forwarded-for-ip \
            front-end-https http-client-ip http-x-forwarded-for hw-client-ip incap-client-ip \
            proxy-client-ip real-ip remote-addr source-ip true-client-ip wl-proxy-client-ip \
            x-akamai-edgescape x-appengine-user-ip x-arr-clientcert x-azure-clientip x-azure-socketip \
            x-caller-ip x-client-ip x-cluster-client-ip x-custom-ip-authorization \
            x-envoy-external-address x-forward-for x-forwarded x-forwarded-client-cert x-forwarded-for \
            x-forwarded-for-original x-gateway-client-ip x-ms-client-principal-name \
            x-nf-client-connection-ip x-original-forwarded-for x-original-url x-originating-ip \
            x-proxyuser-ip x-real-ip x-remote-addr x-remote-ip x-rewrite-url x-source-ip \
            x-sucuri-clientip x-true-client-ip x-true-ip x-user-ip x-vercel-forwarded-for \
            x-vercel-ip-country x-vercel-proxied-for x-wap-client-ip z-forwarded-for";
        for name in names.split_whitespace() {
            assert!(is_of_proxies(name), "{name}");
        }
        // Fields that clients send for reasons of their own.
        let others = "accept access-control-request-headers authorization cache-control cookie from host \
            if-range origin referer sec-fetch-user tip trip user-agent via x-api-key \
            x-csrf-token x-forward x-membership x-request-id x-requested-with x-user-id";
        for name in others.split_whitespace() {
            assert!(!is_of_proxies(name), "{name}");
        }
    }

    #[test]
    fn fields_of_the_message_and_of_the_caller_are_protected() {
        let rows = [
            ("host", true),
            ("content-length", true),
            ("authorization", true),
            ("x-user-id", true),
            ("x-api-key", true),
            ("x-forwarded-proto", true),
            ("keep-alive", false),
            ("te", false),
            ("x-custom", false),
        ];
        for (name, protected) in rows {
            assert_eq!(is_protected(name, &identify()), protected, "{name}");
        }
    }
}
