//! Who is calling, from an HTTP request: address, user, API key and tier.
//!
//! Whatever a request says about its sender is a claim. Claims count only if the peer at the other
//! end of the connection is trusted; the others are ignored as if they had not been sent. The
//! address is found by walking a forwarding header from the right, the end that trusted proxies
//! write, and stopping at the first address that is not a trusted proxy's: what stands left of it
//! was written by the client. What callers prove themselves counts from anyone: an API key, which
//! is their secret, and the claims of a signed token.

mod address;
pub(crate) mod api_key;
mod forwarded;
#[cfg(feature = "jwt")]
pub mod jwt;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
#[cfg(feature = "jwt")]
use std::sync::Arc;

use ipnet::IpNet;
use tollgate::Micros;

use crate::facts::{Facts, Headers};
use crate::matcher::contains;

use address::ReverseListEntries;
#[cfg(feature = "jwt")]
use jwt::JwtVerifier;

pub(crate) use address::{ENTRIES_MAX, network};

/// Settings for the identification of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identify {
    /// Networks whose forwarding, user and tier headers are trusted.
    pub trusted_peers: Vec<IpNet>,
    /// The source of the user.
    pub user: UserSource,
    /// The header that carries an API key, in small letters.
    pub api_key_header: Option<Box<str>>,
    /// The header that names the tier, in small letters.
    pub tier_header: Option<Box<str>>,
    /// The tier of users known by name.
    pub tier_of_user: HashMap<Box<str>, Box<str>>,
    /// The tier of all other callers.
    pub default_tier: Option<Box<str>>,
    /// The source of the client's address.
    pub address: AddressSource,
    /// Number of bits of an IPv6 address that identify one caller.
    pub ipv6_prefix: u8,
    /// Number of trusted proxies, from 1 to 32, if they are known by their number only. The peer is
    /// the last of them and must be trusted all the same.
    pub trusted_hops: Option<u8>,
    /// True if addresses in 64:ff9b::/96 stand for the IPv4 addresses in them.
    pub nat64: bool,
}

/// The source of the user. There is exactly one, as with addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserSource {
    /// No source.
    #[default]
    Nowhere,
    /// A header of a trusted peer, in small letters.
    Header(Box<str>),
    /// The API key in this header, in small letters; the user is its hash.
    ApiKey(Box<str>),
    /// A claim of a signed token.
    #[cfg(feature = "jwt")]
    Jwt(Arc<JwtVerifier>),
}

/// The source of the client's address. There is exactly one: with two headers, the client could
/// choose which one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// The peer itself.
    Peer,
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// Another header, in small letters, that has one address.
    Header(Box<str>),
}

/// Number of tokens that were verified or rejected since these rules were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JwtStats {
    /// Valid tokens.
    pub verified: u64,
    /// Tokens that were expired, malformed, too large, sent twice, or signed with another key.
    pub rejected: u64,
}

impl Default for Identify {
    /// A proxy on this machine may forward client addresses; users and tiers are not read from
    /// headers until a rules file says so.
    fn default() -> Identify {
        let loopback = ["127.0.0.0/8", "::1/128"];
        Identify {
            trusted_peers: loopback.map(|net| net.parse().expect("a network")).into(),
            user: UserSource::Nowhere,
            api_key_header: None,
            tier_header: None,
            tier_of_user: HashMap::new(),
            default_tier: None,
            address: AddressSource::XForwardedFor,
            ipv6_prefix: 64,
            trusted_hops: None,
            nat64: false,
        }
    }
}

/// The identity of a caller.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The user.
    pub user: Option<Cow<'a, str>>,
    /// The API key.
    pub api_key: Option<Cow<'a, str>>,
    /// The tier that a trusted peer or a token named.
    pub tier: Option<Cow<'a, str>>,
}

impl Identity<'_> {
    /// A copy that does not borrow the request.
    pub fn into_owned(self) -> Identity<'static> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Identity {
            ip: self.ip,
            user: owned(self.user),
            api_key: owned(self.api_key),
            tier: owned(self.tier),
        }
    }

    /// Completes stated facts with the identity from the header fields. Stated facts take
    /// precedence. User and tier from headers count only if the stated address is trusted or a
    /// token proves them; the address itself stays as stated. If the facts state one user and the
    /// fields name another, the tier from the fields does not count.
    pub fn complete<'f>(&'f self, stated: Facts<'f>) -> Facts<'f> {
        if stated.headers.is_none() {
            return stated;
        }
        let found = self.user.as_deref();
        // An empty name is no name.
        let given = |fact: Option<&'f str>| fact.filter(|text| !text.is_empty());
        let user = given(stated.user);
        let same = user.is_none() || found.is_none() || user == found;
        Facts {
            user: user.or(found),
            tier: given(stated.tier).or(self.tier.as_deref().filter(|_| same)),
            api_key: given(stated.api_key).or(self.api_key.as_deref()),
            ..stated
        }
    }
}

impl fmt::Debug for Identity<'_> {
    /// Without the API key, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("ip", &self.ip)
            .field("user", &self.user)
            .field("tier", &self.tier)
            .field("api_key", &self.api_key.as_deref().map(api_key::hash_api_key))
            .finish()
    }
}

impl Identify {
    /// Returns true if the headers of this peer are trusted.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        contains(&self.trusted_peers, peer)
    }

    /// Identifies the caller of a request.
    pub fn identify<'a>(
        &self,
        peer: IpAddr,
        headers: &'a dyn Headers,
        now: Micros,
    ) -> Identity<'a> {
        let peer = peer.to_canonical();
        let proven = self.proven_identity(headers, now);
        if !self.trusts(peer) {
            return Identity { ip: Some(self.canonical_address(peer)), ..proven };
        }
        let header = |name: &'_ str| headers.only(name);
        let named = || match &self.user {
            UserSource::Header(name) => header(name),
            _ => None,
        };
        Identity {
            ip: Some(self.canonical_address(self.client_of(peer, headers))),
            user: proven.user.or_else(named),
            api_key: proven.api_key,
            tier: proven.tier.or_else(|| header(self.tier_header.as_deref()?)),
        }
    }

    /// Reads the identity that callers prove themselves, through any peer.
    #[cfg_attr(not(feature = "jwt"), expect(unused_variables, reason = "only tokens end"))]
    fn proven_identity<'a>(&self, headers: &'a dyn Headers, now: Micros) -> Identity<'a> {
        // A key sent twice is still a key: ignoring it would free its owner from limits. Two
        // different ones are refused by the code that reads requests: see `RuleSet::makes_keys_of`.
        let secret = |name: &str| Some(without_scheme(name, headers.first_line(name)?));
        let mut proven = Identity {
            api_key: self.api_key_header.as_deref().and_then(secret),
            ..Identity::default()
        };
        match &self.user {
            UserSource::ApiKey(name) => {
                let key = secret(name).filter(|key| !key.is_empty());
                proven.user = key.map(|key| Cow::Owned(api_key::hash_api_key(&key).to_string()));
            }
            #[cfg(feature = "jwt")]
            UserSource::Jwt(jwt) => {
                let said = jwt.read(headers, now);
                let (user, tier) = said.map(|said| (said.user, said.tier)).unwrap_or_default();
                // A tier belongs to a user.
                let tier = tier.filter(|_| user.is_some());
                let owned = |text: Arc<str>| Cow::Owned(text.as_ref().to_owned());
                (proven.user, proven.tier) = (user.map(owned), tier.map(owned));
            }
            UserSource::Nowhere | UserSource::Header(_) => {}
        }
        proven
    }

    /// Identifies the caller by the header fields of stated facts, which
    /// [`complete`](Identity::complete) then fills in.
    pub fn identify_stated<'a>(&'a self, stated: &Facts<'a>, now: Micros) -> Identity<'a> {
        match (stated.headers, stated.ip) {
            (None, _) => Identity::default(),
            (Some(headers), Some(ip)) => self.identify(ip, headers, now),
            (Some(headers), None) => self.proven_identity(headers, now),
        }
    }

    /// The client that a trusted peer forwards.
    fn client_of(&self, peer: IpAddr, headers: &dyn Headers) -> IpAddr {
        // The address of an entry, if it has one. The outer `None`: no proxy writes such an entry.
        type AddressParser = fn(&str) -> Option<Option<IpAddr>>;
        let (name, in_quotes, read): (_, _, AddressParser) = match &self.address {
            AddressSource::Peer => return peer,
            AddressSource::XForwardedFor => {
                ("x-forwarded-for", false, |text| Some(address::entry(text)))
            }
            AddressSource::Forwarded => ("forwarded", true, forwarded::forwarded_for),
            // One address, not a chain: two of them are an attempt to deceive.
            AddressSource::Header(name) => {
                return headers.only(name).and_then(|text| address::entry(&text)).unwrap_or(peer);
            }
        };
        let Some(list) = headers.joined(name) else { return peer };
        let mut entries = ReverseListEntries::new(&list, in_quotes).map_while(read);
        if let Some(hops) = self.trusted_hops {
            // The last proxy wrote the last entry, the one before it that before, the first of them
            // the client's. A client that came through fewer proxies is identified by the peer's
            // address.
            return entries.nth(usize::from(hops).saturating_sub(1)).flatten().unwrap_or(peer);
        }
        let mut client = peer;
        for ip in entries.map_while(|said| said) {
            client = ip;
            if !self.trusts(ip) {
                break;
            }
        }
        client
    }

    /// An address in its one form. Translated addresses only change form when it is known whose
    /// they are: trusting one because of the IPv4 address in it would trust anybody who can write
    /// it.
    pub(crate) fn canonical_address(&self, ip: IpAddr) -> IpAddr {
        let ip = ip.to_canonical();
        if self.nat64 { address::translated(ip) } else { ip }
    }

    /// Returns true if users are identified by their API keys: the name of a user is then the hash of one.
    pub fn users_are_api_keys(&self) -> bool {
        matches!(self.user, UserSource::ApiKey(_))
    }

    /// The headers by which callers prove who they are: API key and token.
    pub(crate) fn proving_headers(&self) -> impl Iterator<Item = &str> {
        let of_user = match &self.user {
            UserSource::ApiKey(name) => Some(&**name),
            #[cfg(feature = "jwt")]
            UserSource::Jwt(jwt) => Some(jwt.header()),
            UserSource::Header(_) | UserSource::Nowhere => None,
        };
        self.api_key_header.as_deref().into_iter().chain(of_user)
    }

    /// The headers with one value in which trusted peers identify the caller: user and address.
    pub(crate) fn forwarded_headers(&self) -> impl Iterator<Item = &str> {
        let of_user = match &self.user {
            UserSource::Header(name) => Some(&**name),
            _ => None,
        };
        let of_address = match &self.address {
            AddressSource::Header(name) => Some(&**name),
            AddressSource::Peer | AddressSource::XForwardedFor | AddressSource::Forwarded => None,
        };
        of_user.into_iter().chain(of_address)
    }

    /// The headers by which callers are identified, except lists of addresses.
    pub(crate) fn identity_headers(&self) -> impl Iterator<Item = &str> {
        let tier = self.tier_header.as_deref();
        self.forwarded_headers().chain(tier).chain(self.proving_headers())
    }

    /// Returns true if callers are identified by this header, in small letters: by what a trusted peer
    /// says, or by an API key or a token.
    pub fn is_identity_header(&self, header: &str) -> bool {
        self.is_claim_header(header) || self.proving_headers().any(|name| name == header)
    }

    /// Returns true if this header, in small letters, names the user, the tier or the address of the
    /// caller, which counts only from a trusted peer. A proxy removes it from the requests of all
    /// others, so that servers behind it can rely on it.
    pub fn is_claim_header(&self, header: &str) -> bool {
        let tier = self.tier_header.as_deref();
        self.forwarded_headers().chain(tier).any(|name| name == header)
    }

    /// Returns true if users are identified by the API key that is also the fact `api_key`.
    pub(crate) fn finds_users_by_api_key(&self) -> bool {
        match &self.user {
            UserSource::ApiKey(header) => self.api_key_header.as_deref() == Some(header),
            _ => false,
        }
    }

    /// A stated API key as the header would give it: without the scheme of `Authorization`.
    pub(crate) fn without_scheme<'k>(&self, api_key: &'k str) -> &'k str {
        match self.api_key_header.as_deref().is_some_and(has_scheme) {
            true => credentials(api_key),
            false => api_key,
        }
    }

    /// Returns true if requests can name a user.
    pub(crate) fn finds_users(&self) -> bool {
        !matches!(self.user, UserSource::Nowhere)
    }

    /// Returns true if requests can name a tier.
    pub(crate) fn finds_tiers(&self) -> bool {
        #[cfg(feature = "jwt")]
        if let UserSource::Jwt(jwt) = &self.user
            && jwt.names_tiers()
        {
            return true;
        }
        self.tier_header.is_some()
    }

    /// The file with the keys of signed tokens, if there is one: when it changes, the rules should be
    /// read anew.
    pub fn keys_file(&self) -> Option<&Path> {
        match &self.user {
            #[cfg(feature = "jwt")]
            UserSource::Jwt(jwt) => Some(jwt.keys_file()),
            _ => None,
        }
    }

    /// Number of tokens that were verified or rejected.
    pub fn jwt_stats(&self) -> JwtStats {
        match &self.user {
            #[cfg(feature = "jwt")]
            UserSource::Jwt(jwt) => jwt.stats(),
            _ => JwtStats::default(),
        }
    }

    /// Takes over the verified tokens and the counts of the previous version, if keys and settings
    /// are the same, so that a changed rule does not verify all tokens again.
    pub fn inherit_tokens(&mut self, before: &Identify) {
        #[cfg(feature = "jwt")]
        if let (UserSource::Jwt(new), UserSource::Jwt(old)) = (&mut self.user, &before.user)
            && new == old
        {
            *new = Arc::clone(old);
        }
        #[cfg(not(feature = "jwt"))]
        let _ = before;
    }
}

/// Returns true if the values of this header, in small letters, begin with a scheme such as `Bearer`.
pub(crate) fn has_scheme(header: &str) -> bool {
    matches!(header, "authorization" | "proxy-authorization")
}

/// The credentials behind a scheme. Servers accept `bearer k`, `BEARER k` and `Bearer  k` alike, so the scheme must not
/// tell one caller from another.
pub(crate) fn credentials(value: &str) -> &str {
    let value = value.trim_matches([' ', '\t']);
    value.split_once([' ', '\t']).map_or(value, |(_, rest)| rest.trim_start_matches([' ', '\t']))
}

/// The value of a header without its scheme, if it has one.
pub(crate) fn without_scheme<'a>(header: &str, value: Cow<'a, str>) -> Cow<'a, str> {
    match value {
        value if !has_scheme(header) => value,
        Cow::Borrowed(value) => Cow::Borrowed(credentials(value)),
        Cow::Owned(value) => Cow::Owned(credentials(&value).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identify() -> Identify {
        Identify {
            trusted_peers: vec!["10.0.0.0/8".parse().unwrap()],
            user: UserSource::Header("x-user-id".into()),
            tier_header: Some("x-tier".into()),
            ..Identify::default()
        }
    }

    const NOW: Micros = Micros::new(0);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_address_is_found_from_the_right() {
        // Peer, header, client.
        let cases = [
            ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
            ("10.0.0.1", "10.0.0.3,10.0.0.2", "10.0.0.3"),
            ("203.0.113.1", "1.1.1.1", "203.0.113.1"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("10.0.0.1", "garbage", "10.0.0.1"),
            ("10.0.0.1", "1.1.1.1, garbage", "10.0.0.1"),
            ("10.0.0.1", "garbage, 10.0.0.2", "10.0.0.2"),
            ("10.0.0.1", "203.0.113.9:8080", "203.0.113.9"),
            ("10.0.0.1", "[2001:db8::1]:443", "2001:db8::1"),
            ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
            ("10.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),
            ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
            ("10.0.0.1", "unknown", "10.0.0.1"),
        ];
        for (peer, list, want) in cases {
            let headers = vec![("X-Forwarded-For", list)];
            let got = identify().identify(ip(peer), &headers, NOW);
            assert_eq!(got.ip, Some(ip(want)), "{peer} {list:?}");
        }
        // The client writes the left end: however much it writes there, its address is found.
        for left in ["1.1.1.1,".repeat(40), "x".repeat(5_000) + ",", "\u{fffd},".into()] {
            let list = left + "203.0.113.9, 10.0.0.2";
            let headers = vec![("X-Forwarded-For", list.as_str())];
            let got = identify().identify(ip("10.0.0.1"), &headers, NOW);
            assert_eq!(got.ip, Some(ip("203.0.113.9")), "{} bytes", list.len());
        }
    }

    #[test]
    fn lines_are_one_list() {
        let headers = vec![("X-Forwarded-For", "1.1.1.1"), ("X-Forwarded-For", "203.0.113.9")];
        let got = identify().identify(ip("10.0.0.1"), &headers, NOW);
        assert_eq!(got.ip, Some(ip("203.0.113.9")));
    }

    #[test]
    fn one_header_is_believed() {
        let headers =
            vec![("X-Forwarded-For", "1.1.1.1"), ("Forwarded", "for=203.0.113.9;proto=https")];
        let forwarded = Identify { address: AddressSource::Forwarded, ..identify() };
        assert_eq!(forwarded.identify(ip("10.0.0.1"), &headers, NOW).ip, Some(ip("203.0.113.9")));
        assert_eq!(identify().identify(ip("10.0.0.1"), &headers, NOW).ip, Some(ip("1.1.1.1")));
        let quoted = vec![("Forwarded", "for=1.1.1.1, For=\"[2001:db8::1]:4711\"")];
        let got = forwarded.identify(ip("10.0.0.1"), &quoted, NOW);
        assert_eq!(got.ip, Some(ip("2001:db8::1")));
        for hidden in ["for=_hidden", "for=unknown", "proto=https", "for=1.1.1.1;for=2.2.2.2"] {
            let headers = vec![("Forwarded", hidden)];
            let got = forwarded.identify(ip("10.0.0.1"), &headers, NOW);
            assert_eq!(got.ip, Some(ip("10.0.0.1")), "{hidden}");
        }
    }

    #[test]
    fn strangers_cannot_name_users_or_tiers() {
        let headers = vec![("X-User-Id", "42"), ("X-Tier", "enterprise")];
        let stranger = identify().identify(ip("203.0.113.1"), &headers, NOW);
        assert_eq!((stranger.user, stranger.tier), (None, None));
        let twice = vec![("X-User-Id", "forged"), ("X-User-Id", "42"), ("X-Tier", "pro")];
        let added = identify().identify(ip("10.0.0.1"), &twice, NOW);
        assert_eq!((added.user, added.tier.as_deref()), (None, Some("pro")), "whose, of two?");
        let proxy = identify().identify(ip("10.0.0.1"), &headers, NOW);
        assert_eq!(
            (proxy.user.as_deref(), proxy.tier.as_deref()),
            (Some("42"), Some("enterprise"))
        );
    }

    #[test]
    fn headers_that_name_a_caller_are_told_from_those_that_prove_one() {
        let by_header = Identify {
            address: AddressSource::Header("x-client".into()),
            api_key_header: Some("x-api-key".into()),
            ..identify()
        };
        let by_key = Identify { user: UserSource::ApiKey("x-key".into()), ..identify() };
        // Settings, header | identifies, only from trusted peers
        let rows = [
            (&by_header, "x-user-id", true, true),
            (&by_header, "x-tier", true, true),
            (&by_header, "x-client", true, true),
            (&by_header, "x-api-key", true, false),
            (&by_header, "x-key", false, false),
            (&by_key, "x-key", true, false),
            (&by_key, "x-user-id", false, false),
        ];
        for (identify, header, identifies, is_claim) in rows {
            assert_eq!(identify.is_identity_header(header), identifies, "{header}");
            assert_eq!(identify.is_claim_header(header), is_claim, "{header}");
        }
    }

    #[test]
    fn stated_facts_win_over_headers_and_are_completed_by_them() {
        let identify = Identify { api_key_header: Some("x-api-key".into()), ..identify() };
        let headers = vec![("X-User-Id", "42"), ("X-Tier", "pro"), ("X-Api-Key", "k")];
        let headers: &dyn Headers = &headers;
        let tier_only: &dyn Headers = &vec![("X-Tier", "pro")];
        let complete = |ip: Option<&str>, user, headers| {
            let stated = Facts { ip: ip.map(self::ip), user, headers, ..Facts::default() };
            let identity = identify.identify_stated(&stated, NOW);
            let facts = identity.complete(stated);
            assert_eq!(facts.ip, stated.ip, "the address stays");
            [facts.user, facts.tier, facts.api_key].map(|fact| fact.map(str::to_string))
        };
        // ip, user, headers | user, tier, API key
        let rows = [
            (Some("10.0.0.1"), None, Some(headers), [Some("42"), Some("pro"), Some("k")]),
            (Some("10.0.0.1"), Some("42"), Some(headers), [Some("42"), Some("pro"), Some("k")]),
            (Some("10.0.0.1"), Some("7"), Some(headers), [Some("7"), None, Some("k")]),
            (Some("10.0.0.1"), Some("7"), Some(tier_only), [Some("7"), Some("pro"), None]),
            (Some("203.0.113.1"), None, Some(headers), [None, None, Some("k")]),
            (None, None, Some(headers), [None, None, Some("k")]),
            (Some("10.0.0.1"), Some("7"), None, [Some("7"), None, None]),
        ];
        for (ip, user, headers, want) in rows {
            assert_eq!(complete(ip, user, headers), want.map(|fact| fact.map(str::to_string)));
        }
    }
}
