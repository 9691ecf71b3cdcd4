//! `TraceFile`: recorded requests as a trace that `tollgate simulate --rules` reads, with callers hashed.
//!
//! A user, an API key and a header that keys are made of become their hash in log lines. An address becomes a
//! private IPv6 address (`fd…`), made from its hash: an IPv6 caller is its network, as in keys. Whoever has the
//! file cannot tell who a caller is, but its limits can be replayed.
//!
//! The file is bounded as the ring is: when it is full, the share of callers is halved and the others are
//! removed from the file; or, if a few callers make most of it, the oldest quarter of its requests.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use tollgate::KeyBuf;

use super::entry::RecordedRequest;
use super::sampling::{SampleShare, network_bits};
use crate::key_names::KeyNames;

/// The first line of a file: readers warn that conditions on the callers do not hold.
pub(crate) const RECORDED_LINE: &str = "{\"recorded\":{\"by\":\"tollgate serve --record\",\"hashed\":[\"user\",\"api_key\",\"ip\",\"headers of keys\"]}}\n";

/// A file that is being recorded.
pub(super) struct TraceFile {
    path: PathBuf,
    out: BufWriter<File>,
    names: Arc<KeyNames>,
    share: SampleShare,
    bytes: u64,
    bytes_max: u64,
    /// The hash of the caller of each line. Bound: `bytes_max`, because a line has more than 8 bytes.
    callers: Vec<u64>,
}

/// A line of the file.
#[derive(Serialize)]
struct RecordedLine<'a> {
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    facts: RecordedFacts<'a>,
}

/// The facts of a line, without those that the request lacks.
#[derive(Serialize)]
struct RecordedFacts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    headers: Map<String, Value>,
}

impl TraceFile {
    /// Creates the file. A file that exists is kept under the same name with `.1` appended.
    pub(super) fn create(
        path: &Path,
        bytes_max: u64,
        names: Arc<KeyNames>,
    ) -> io::Result<TraceFile> {
        check_regular(path)?;
        if path.exists() {
            fs::rename(path, beside(path, ".1"))?;
        }
        TraceFile::begin(path, bytes_max, names)
    }

    /// Begins a file, which is empty then.
    fn begin(path: &Path, bytes_max: u64, names: Arc<KeyNames>) -> io::Result<TraceFile> {
        let out = new_file(path)?;
        let mut file = TraceFile {
            path: path.into(),
            out: BufWriter::new(out),
            names,
            share: SampleShare::ALL,
            bytes: RECORDED_LINE.len() as u64,
            bytes_max,
            callers: Vec::new(),
        };
        file.out.write_all(RECORDED_LINE.as_bytes())?;
        file.out.flush()?;
        Ok(file)
    }

    /// Begins a new file under the same name, with all callers, if the old one was moved. Returns false if it was
    /// not. An empty file of that name is used; any other stays untouched, and that is an error.
    pub(super) fn reopen(&mut self) -> io::Result<bool> {
        check_regular(&self.path)?;
        match fs::metadata(&self.path) {
            Ok(found) if is_same_file(&found, &self.out.get_ref().metadata()?) => return Ok(false),
            Ok(found) if found.len() > 0 => {
                return Err(io::Error::other("another file has its name, and it is not empty"));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.out.flush()?;
        *self = TraceFile::begin(&self.path, self.bytes_max, Arc::clone(&self.names))?;
        Ok(true)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn share(&self) -> SampleShare {
        self.share
    }

    /// Appends a request, if its caller is in the share.
    pub(super) fn write(
        &mut self,
        request: &RecordedRequest<'_>,
        ipv6_prefix: u8,
    ) -> io::Result<()> {
        if !self.share.includes(request.caller) {
            return Ok(());
        }
        let mut line = serde_json::to_vec(&self.line(request, ipv6_prefix))?;
        line.push(b'\n');
        let bytes = line.len() as u64;
        while self.bytes + bytes > self.bytes_max && !self.callers.is_empty() {
            self.make_room()?;
            if !self.share.includes(request.caller) {
                return Ok(());
            }
        }
        if self.bytes + bytes > self.bytes_max {
            return Ok(());
        }
        self.out.write_all(&line)?;
        self.bytes += bytes;
        self.callers.push(request.caller);
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn line<'a>(&self, request: &'a RecordedRequest<'_>, ipv6_prefix: u8) -> RecordedLine<'a> {
        let hash = |name: &str, value: &str| self.names.hash(&KeyBuf::new().with(name, value));
        let headers = request.headers.0.iter().map(|header| {
            let value = match header.names_caller {
                true => hash(&format!("header.{}", header.name), &header.value),
                false => header.value.to_string(),
            };
            (header.name.to_string(), value.into())
        });
        RecordedLine {
            at: request.at.as_u64(),
            cost: request.cost,
            facts: RecordedFacts {
                method: request.method,
                path: request.path,
                ip: request.ip.map(|ip| self.private_address(ip, ipv6_prefix)),
                user: request.user.filter(|user| !user.is_empty()).map(|user| hash("user", user)),
                tier: request.tier.or(request.assigned_tier),
                api_key: request.api_key.map(|api_key| hash("api_key", api_key)),
                headers: headers.collect(),
            },
        }
    }

    /// A private address that stands for a caller: `fd` and 56 bits of its hash.
    fn private_address(&self, ip: IpAddr, ipv6_prefix: u8) -> IpAddr {
        let network = match ip.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(network_bits(ip, ipv6_prefix)).into(),
            ip @ IpAddr::V4(_) => ip,
        };
        let hash = self.names.hash(&KeyBuf::new().with("ip", &network.to_string()));
        let bits = u64::from_str_radix(&hash, 16).unwrap_or(0) >> 8 | 0xfd << 56;
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(bits) << 64))
    }

    /// Halves the share, or removes the oldest quarter if a few callers make most of the file.
    fn make_room(&mut self) -> io::Result<()> {
        let half = self.share.halved();
        let (lines, callers) = (self.callers.len(), std::mem::take(&mut self.callers));
        let kept = callers.iter().filter(|caller| half.includes(**caller)).count();
        match kept >= lines / 8 && kept < lines && !self.share.is_smallest() {
            true => {
                self.share = half;
                self.rewrite(&callers, |_, caller| half.includes(caller))
            }
            false => self.rewrite(&callers, |index, _| index > lines / 4),
        }
    }

    /// Writes the file anew with the lines that pass.
    fn rewrite(&mut self, callers: &[u64], keeps: impl Fn(usize, u64) -> bool) -> io::Result<()> {
        self.out.flush()?;
        let (beside, old) = (beside(&self.path, ".tmp"), File::open(&self.path)?);
        let mut new = BufWriter::new(new_file(&beside)?);
        new.write_all(RECORDED_LINE.as_bytes())?;
        self.bytes = RECORDED_LINE.len() as u64;
        self.callers = Vec::new();
        let lines = BufReader::new(old).split(b'\n').skip(1);
        for ((index, caller), line) in callers.iter().enumerate().zip(lines) {
            if keeps(index, *caller) {
                let mut line = line?;
                line.push(b'\n');
                new.write_all(&line)?;
                self.bytes += line.len() as u64;
                self.callers.push(*caller);
            }
        }
        new.flush()?;
        fs::rename(&beside, &self.path)?;
        self.out = new;
        Ok(())
    }
}

/// Refuses a path that leads to something else than a file.
fn check_regular(path: &Path) -> io::Result<()> {
    match path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        true => Err(io::Error::other("it exists and is not a regular file")),
        false => Ok(()),
    }
}

#[cfg(unix)]
fn is_same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Without a number for each file, only a missing name shows that the file was moved.
#[cfg(not(unix))]
fn is_same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Creates a file that only this user can read.
fn new_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The path with an ending.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::super::entry::{PackedHeader, RecordedHeaders};
    use super::*;
    use std::collections::HashMap;
    use tollgate::Micros;

    fn file(directory: &Path, bytes_max: u64) -> TraceFile {
        let names = Arc::new(KeyNames::random().unwrap());
        TraceFile::create(&directory.join("trace.jsonl"), bytes_max, names).unwrap()
    }

    fn lines(file: &mut TraceFile) -> Vec<Value> {
        file.flush().unwrap();
        let text = fs::read_to_string(&file.path).unwrap();
        assert_eq!(text.len() as u64, file.bytes);
        assert!(file.bytes <= file.bytes_max, "{} bytes", file.bytes);
        let (head, rest) = text.split_once('\n').unwrap();
        assert_eq!(format!("{head}\n"), RECORDED_LINE);
        rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn callers_are_hashed_alike_and_nothing_names_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = file(directory.path(), 1 << 20);
        let request = |ip: &str| RecordedRequest {
            at: Micros::new(5),
            cost: Some(2),
            method: Some("GET"),
            path: Some("/api"),
            ip: ip.parse().ok(),
            user: Some("anna"),
            assigned_tier: Some("pro"),
            api_key: Some("sha256:00"),
            headers: RecordedHeaders(vec![
                PackedHeader { name: "x-kind", value: "batch".into(), names_caller: false },
                PackedHeader { name: "x-tenant", value: "acme".into(), names_caller: true },
            ]),
            ..RecordedRequest::default()
        };
        for ip in [
            "192.0.2.1",
            "::ffff:192.0.2.1",
            "192.0.2.2",
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8:1::1",
        ] {
            file.write(&request(ip), 64).unwrap();
        }
        let lines = lines(&mut file);
        let text = format!("{lines:?}");
        for secret in ["anna", "192.0.2", "2001:db8", "acme", "sha256"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        let facts = &lines[0]["facts"];
        assert_eq!((&lines[0]["at"], &lines[0]["cost"]), (&5.into(), &2.into()));
        assert_eq!(
            (&facts["method"], &facts["path"], &facts["tier"]),
            (&"GET".into(), &"/api".into(), &"pro".into())
        );
        assert_eq!(facts["headers"]["x-kind"], "batch");
        assert_eq!(
            facts["user"],
            file.names.hash(&KeyBuf::new().with("user", "anna")),
            "as in the log"
        );
        let ip = |index: usize| lines[index]["facts"]["ip"].as_str().unwrap();
        assert!(ip(0).starts_with("fd"), "{}", ip(0));
        assert_eq!((ip(0) == ip(1), ip(0) == ip(2)), (true, false));
        assert_eq!((ip(3) == ip(4), ip(3) == ip(5)), (true, false));
    }

    #[test]
    fn a_file_that_was_moved_is_begun_anew_and_no_other_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("trace.jsonl"), directory.path().join("old"));
        let mut file = file(directory.path(), 1 << 20);
        let request = |at| RecordedRequest { at: Micros::new(at), ..RecordedRequest::default() };
        file.write(&request(1), 64).unwrap();
        assert!(!file.reopen().unwrap(), "it was not moved");
        file.write(&request(2), 64).unwrap();
        fs::rename(&path, &moved).unwrap();
        assert!(file.reopen().unwrap());
        file.write(&request(3), 64).unwrap();
        let ats =
            |lines: Vec<Value>| lines.iter().map(|line| line["at"].clone()).collect::<Vec<_>>();
        assert_eq!(ats(lines(&mut file)), [3]);
        assert_eq!(
            fs::read_to_string(&moved).unwrap().lines().count(),
            3,
            "its first line and two"
        );
        // An empty file, as programs that rotate logs create it, is used; another one is not.
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "").unwrap();
        assert!(file.reopen().unwrap());
        file.write(&request(4), 64).unwrap();
        assert_eq!(ats(lines(&mut file)), [4]);
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "mine").unwrap();
        let error = file.reopen().unwrap_err();
        assert!(error.to_string().contains("not empty"), "{error}");
        file.write(&request(5), 64).unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&moved).unwrap().lines().count(), 3);
        assert!(!directory.path().join("trace.jsonl.1").exists());
    }

    #[test]
    fn a_file_is_bounded_and_its_callers_are_complete() {
        let directory = tempfile::tempdir().unwrap();
        for callers in [1, 200_u64] {
            let mut file = file(directory.path(), 20_000);
            let mut sent: HashMap<String, u64> = HashMap::new();
            for turn in 0..4_000_u64 {
                let user = (turn % callers).to_string();
                let caller = (turn % callers + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let caller = (caller ^ caller >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93);
                let at = Micros::new(turn);
                let request =
                    RecordedRequest { at, caller, user: Some(&user), ..RecordedRequest::default() };
                file.write(&request, 64).unwrap();
                *sent.entry(file.names.hash(&KeyBuf::new().with("user", &user))).or_default() += 1;
                assert!(file.bytes <= file.bytes_max);
            }
            let lines = lines(&mut file);
            assert_eq!(lines.len(), file.callers.len());
            let mut kept: HashMap<&str, u64> = HashMap::new();
            for line in &lines {
                *kept.entry(line["facts"]["user"].as_str().unwrap()).or_default() += 1;
            }
            assert!(lines.len() >= 20, "{} lines of {callers} callers", lines.len());
            if callers > 1 {
                assert!(file.share.one_in() > 1);
                assert!(kept.iter().all(|(user, requests)| sent[*user] == *requests), "{kept:?}");
            } else {
                assert_eq!(file.share, SampleShare::ALL);
                assert_eq!(lines.last().unwrap()["at"], 3_999);
            }
        }
        assert!(directory.path().join("trace.jsonl.1").exists(), "the file of the first turn");
    }
}
