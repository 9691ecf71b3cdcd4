//! One recorded request: what rules may look at, packed into bytes and read in place.
//!
//! Credentials are never packed: an API key becomes its hash, and a path loses its query, which rules do not
//! look at.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollgate::Micros;
use tollgate_rules::{Facts, Headers};

/// Largest request that is recorded, in bytes. Larger ones are counted as lost.
pub(super) const ENTRY_BYTES_MAX: usize = 4 << 10;

/// A recorded request. Its texts are borrowed from the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedRequest<'a> {
    pub(crate) at: Micros,
    /// The hash that says if the caller is in the share.
    pub(crate) caller: u64,
    /// True if the server allowed the request.
    pub(crate) was_allowed: bool,
    /// True if the caller could not delay the request.
    pub(crate) cannot_wait: bool,
    /// The cost that the caller stated.
    pub(crate) cost: Option<u64>,
    pub(crate) method: Option<&'a str>,
    /// The path without its query.
    pub(crate) path: Option<&'a str>,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) ip_prefix: Option<u8>,
    pub(crate) user: Option<&'a str>,
    pub(crate) tier: Option<&'a str>,
    /// The tier that rules assign to a caller who states none; only for a file, where its user is hashed.
    pub(crate) assigned_tier: Option<&'a str>,
    /// The hash of the API key.
    pub(crate) api_key: Option<&'a str>,
    pub(crate) request_bytes: Option<u64>,
    /// The headers that rules looked at. Bound: 32.
    pub(crate) headers: RecordedHeaders<'a>,
}

/// Header fields of a recorded request. A name appears once, with the value that rules saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedHeaders<'a>(pub(crate) Vec<PackedHeader<'a>>);

/// A header field of a recorded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedHeader<'a> {
    /// The name in lower case.
    pub(crate) name: &'a str,
    pub(crate) value: Cow<'a, str>,
    /// True if keys are made of it, so that it may say who the caller is.
    pub(crate) names_caller: bool,
}

impl Headers for RecordedHeaders<'_> {
    fn each_line<'h>(&'h self, name: &str, each: &mut dyn FnMut(Cow<'h, str>)) {
        let found = self.0.iter().find(|header| header.name == name);
        found.into_iter().for_each(|header| each(Cow::Borrowed(&*header.value)));
    }

    fn joined(&self, name: &str) -> Option<Cow<'_, str>> {
        self.header(name)
    }
}

impl RecordedRequest<'_> {
    /// The facts, as the rules see them.
    pub(crate) fn facts(&self) -> Facts<'_> {
        Facts {
            method: self.method,
            path: self.path,
            ip: self.ip,
            ip_prefix: self.ip_prefix,
            user: self.user,
            tier: self.tier,
            api_key: self.api_key,
            request_bytes: self.request_bytes,
            headers: (!self.headers.0.is_empty()).then_some(&self.headers as &dyn Headers),
            ..Facts::default()
        }
    }
}

/// Bits that say which fields follow.
mod present {
    pub(super) const WAS_ALLOWED: u16 = 1;
    pub(super) const CANNOT_WAIT: u16 = 1 << 1;
    pub(super) const COST: u16 = 1 << 2;
    pub(super) const METHOD: u16 = 1 << 3;
    pub(super) const PATH: u16 = 1 << 4;
    pub(super) const IPV4: u16 = 1 << 5;
    pub(super) const IPV6: u16 = 1 << 6;
    pub(super) const IP_PREFIX: u16 = 1 << 7;
    pub(super) const USER: u16 = 1 << 8;
    pub(super) const TIER: u16 = 1 << 9;
    pub(super) const API_KEY: u16 = 1 << 10;
    pub(super) const REQUEST_BYTES: u16 = 1 << 11;
    pub(super) const ASSIGNED_TIER: u16 = 1 << 12;
}

/// Bytes of the fields that every entry has: its length, presence bits, time and caller.
const HEAD_BYTES: usize = 4 + 2 + 8 + 8;

/// Appends a request. Returns false, and appends nothing, if it is larger than [`ENTRY_BYTES_MAX`].
pub(super) fn pack(request: &RecordedRequest<'_>, into: &mut Vec<u8>) -> bool {
    let start = into.len();
    let mut bits = 0;
    into.extend_from_slice(&[0; 6]);
    into.extend_from_slice(&request.at.as_u64().to_le_bytes());
    into.extend_from_slice(&request.caller.to_le_bytes());
    bits |= if request.was_allowed { present::WAS_ALLOWED } else { 0 };
    bits |= if request.cannot_wait { present::CANNOT_WAIT } else { 0 };
    for (number, bit) in
        [(request.cost, present::COST), (request.request_bytes, present::REQUEST_BYTES)]
    {
        if let Some(number) = number {
            bits |= bit;
            into.extend_from_slice(&number.to_le_bytes());
        }
    }
    match request.ip {
        Some(IpAddr::V4(ip)) => {
            bits |= present::IPV4;
            into.extend_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            bits |= present::IPV6;
            into.extend_from_slice(&ip.octets());
        }
        None => {}
    }
    if let Some(prefix) = request.ip_prefix {
        bits |= present::IP_PREFIX;
        into.push(prefix);
    }
    let texts = [
        (request.method, present::METHOD),
        (request.path, present::PATH),
        (request.user, present::USER),
        (request.tier, present::TIER),
        (request.assigned_tier, present::ASSIGNED_TIER),
        (request.api_key, present::API_KEY),
    ];
    let mut fits = true;
    for (text, bit) in texts {
        if let Some(text) = text {
            bits |= bit;
            fits &= pack_text(text, into);
        }
    }
    for header in &request.headers.0 {
        into.push(header.names_caller.into());
        fits &= pack_text(header.name, into) && pack_text(&header.value, into);
    }
    let bytes = into.len() - start;
    if !fits || bytes > ENTRY_BYTES_MAX {
        into.truncate(start);
        return false;
    }
    into[start..start + 4].copy_from_slice(&(bytes as u32).to_le_bytes());
    into[start + 4..start + 6].copy_from_slice(&bits.to_le_bytes());
    true
}

/// Appends a text with its length; returns false if it is too long.
fn pack_text(text: &str, into: &mut Vec<u8>) -> bool {
    if text.len() > ENTRY_BYTES_MAX {
        return false;
    }
    into.extend_from_slice(&(text.len() as u16).to_le_bytes());
    into.extend_from_slice(text.as_bytes());
    true
}

/// The entries in bytes that [`pack`] wrote.
pub(super) fn entries(packed: &[u8]) -> impl Iterator<Item = PackedEntry<'_>> {
    let mut rest = packed;
    std::iter::from_fn(move || {
        let bytes = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        let (entry, after) = rest.split_at_checked(bytes)?;
        rest = after;
        (entry.len() >= HEAD_BYTES).then_some(PackedEntry(entry))
    })
}

/// An entry whose fields are not read yet.
#[derive(Clone, Copy)]
pub(super) struct PackedEntry<'a>(&'a [u8]);

impl<'a> PackedEntry<'a> {
    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn at(self) -> Micros {
        Micros::new(u64::from_le_bytes(self.0[6..14].try_into().expect("eight bytes")))
    }

    pub(super) fn caller(self) -> u64 {
        u64::from_le_bytes(self.0[14..22].try_into().expect("eight bytes"))
    }

    /// Reads all fields; `None` if the bytes are not what [`pack`] writes.
    pub(super) fn read(self) -> Option<RecordedRequest<'a>> {
        let bits = u16::from_le_bytes([self.0[4], self.0[5]]);
        let mut fields = FieldReader(&self.0[HEAD_BYTES..]);
        let has = |bit: u16| bits & bit != 0;
        Some(RecordedRequest {
            at: self.at(),
            caller: self.caller(),
            was_allowed: has(present::WAS_ALLOWED),
            cannot_wait: has(present::CANNOT_WAIT),
            cost: fields.number(has(present::COST))?,
            request_bytes: fields.number(has(present::REQUEST_BYTES))?,
            ip: match (has(present::IPV4), has(present::IPV6)) {
                (true, _) => Some(Ipv4Addr::from(fields.take::<4>()?).into()),
                (false, true) => Some(Ipv6Addr::from(fields.take::<16>()?).into()),
                (false, false) => None,
            },
            ip_prefix: match has(present::IP_PREFIX) {
                true => Some(fields.take::<1>()?[0]),
                false => None,
            },
            method: fields.text(has(present::METHOD))?,
            path: fields.text(has(present::PATH))?,
            user: fields.text(has(present::USER))?,
            tier: fields.text(has(present::TIER))?,
            assigned_tier: fields.text(has(present::ASSIGNED_TIER))?,
            api_key: fields.text(has(present::API_KEY))?,
            headers: fields.headers()?,
        })
    }
}

/// Takes fields from the front.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A number that is there or not. The outer `None`: the bytes end.
    #[expect(clippy::option_option, reason = "the outer one is an error")]
    fn number(&mut self, is_present: bool) -> Option<Option<u64>> {
        match is_present {
            true => Some(Some(u64::from_le_bytes(self.take()?))),
            false => Some(None),
        }
    }

    /// A text that is there or not. The outer `None`: the bytes are no text.
    #[expect(clippy::option_option, reason = "the outer one is an error")]
    fn text(&mut self, is_present: bool) -> Option<Option<&'a str>> {
        if !is_present {
            return Some(None);
        }
        let bytes = u16::from_le_bytes(self.take()?);
        let (text, rest) = self.0.split_at_checked(bytes.into())?;
        self.0 = rest;
        str::from_utf8(text).ok().map(Some)
    }

    fn headers(&mut self) -> Option<RecordedHeaders<'a>> {
        let mut headers = Vec::new();
        while !self.0.is_empty() {
            let names_caller = self.take::<1>()? != [0];
            let (name, value) = (self.text(true)??, self.text(true)??.into());
            headers.push(PackedHeader { name, value, names_caller });
        }
        Some(RecordedHeaders(headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> RecordedRequest<'static> {
        RecordedRequest {
            at: Micros::new(1_500_000),
            caller: 0x1234_5678_9abc_def0,
            was_allowed: true,
            cannot_wait: true,
            cost: Some(7),
            method: Some("GET"),
            path: Some("/api/ä"),
            ip: "2001:db8::1".parse().ok(),
            ip_prefix: Some(64),
            user: Some("42"),
            tier: Some("pro"),
            assigned_tier: Some("free"),
            api_key: Some("sha256:00"),
            request_bytes: Some(u64::MAX),
            headers: RecordedHeaders(vec![
                PackedHeader { name: "x-tenant", value: "acme".into(), names_caller: true },
                PackedHeader { name: "x-empty", value: "".into(), names_caller: false },
            ]),
        }
    }

    #[test]
    fn entries_are_read_as_they_were_packed() {
        let full = full();
        let ipv4 = RecordedRequest { ip: "192.0.2.1".parse().ok(), ..RecordedRequest::default() };
        let some = RecordedRequest { user: Some(""), cost: Some(0), ..RecordedRequest::default() };
        let requests = [full, RecordedRequest::default(), ipv4, some];
        let mut packed = Vec::new();
        assert!(requests.iter().all(|request| pack(request, &mut packed)));
        let read: Vec<_> = entries(&packed).map(|entry| entry.read().unwrap()).collect();
        assert_eq!(read, requests);
        // Bytes that end early are no entry, and no panic.
        for end in 0..packed.len() {
            assert!(entries(&packed[..end]).count() < requests.len());
        }
    }

    #[test]
    fn what_is_too_large_is_left_out_whole() {
        let long = "x".repeat(ENTRY_BYTES_MAX);
        let mut packed = Vec::new();
        for request in [
            RecordedRequest { path: Some(&long), ..full() },
            RecordedRequest { user: Some(&long[..ENTRY_BYTES_MAX - 10]), ..full() },
            RecordedRequest {
                headers: RecordedHeaders(vec![PackedHeader {
                    name: "x-a",
                    value: (&*long).into(),
                    names_caller: false,
                }]),
                ..RecordedRequest::default()
            },
        ] {
            assert!(!pack(&request, &mut packed) && packed.is_empty());
        }
        let fits = RecordedRequest { path: Some(&long[..3_000]), ..full() };
        assert!(pack(&fits, &mut packed));
    }
}
