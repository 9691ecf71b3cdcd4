//! `TrafficRecorder`: packs requests on the threads that decide them, and hands full chunks to the thread that
//! keeps them.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{RecvError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tollgate::Micros;
use tollgate_rules::credentials::{shown_header_value, shown_url};
use tollgate_rules::rule_set::{hash_credential, hash_header_credential};
use tollgate_rules::stripes::{StripedCounters, Stripes};
use tollgate_rules::{DecidedRequest, Facts};

use super::entry::{ENTRY_BYTES_MAX, PackedHeader, RecordedHeaders, RecordedRequest, pack};
use super::keeper::{SortedTraceFile, TrafficKeeper};
use super::ring::{CHUNK_BYTES, RecordedTraffic, TrafficChunk, TrafficRing};
use super::sampling::{CallerSampler, CurrentShare};
use super::trace_file::TraceFile;
use crate::background;
use crate::cli::Report;
use crate::key_names::KeyNames;
use crate::settings::ServerSettings;
use crate::telemetry::Logs;

/// Chunks that wait for the thread. Further ones are dropped and counted.
const CHUNKS_WAITING_MAX: usize = 64;

/// Longest time that requests stay in the chunk of their stripe while others follow.
const CHUNK_HELD_US: u64 = 1_000_000;

/// Indexes of the counters.
const LOST: usize = 0;
const WITHOUT_FACTS: usize = 1;

/// Records requests. Bound: a chunk of [`CHUNK_BYTES`] for each stripe of threads, [`CHUNKS_WAITING_MAX`] that
/// wait, and the ring.
pub(crate) struct TrafficRecorder {
    sampler: CallerSampler,
    share: Arc<CurrentShare>,
    /// Number of bits of an IPv6 address that identify one caller, for the thread.
    ipv6_prefix: Arc<AtomicU8>,
    /// True if a file is written.
    has_file: bool,
    /// True from a request to open the file again until the thread does so.
    is_reopening: Arc<AtomicBool>,
    /// The locks are hardly contended: each thread has its own stripe.
    stripes: Arc<ChunkStripes>,
    messages: SyncSender<RecorderMessage>,
    counters: StripedCounters<2>,
    /// Requests in chunks that were dropped.
    dropped: AtomicU64,
}

/// Handle of the thread that keeps recorded requests.
pub(crate) struct RecorderThread {
    recorder: Arc<TrafficRecorder>,
    thread: JoinHandle<()>,
}

/// Requests that are missing in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingRequests {
    /// Requests that were too large, or that came faster than the thread could keep them.
    pub(crate) lost: u64,
    /// Descriptors of Envoy, which have no facts of one request.
    pub(crate) without_facts: u64,
}

/// The chunks that threads fill.
pub(super) type ChunkStripes = Stripes<Mutex<TrafficChunk>>;

/// A message to the thread.
pub(super) enum RecorderMessage {
    Chunk(TrafficChunk),
    /// Asks for the contents of the ring at an instant.
    Show(Micros, SyncSender<RecordedTraffic>),
    End,
}

impl TrafficRecorder {
    /// Starts to record as the settings say; `None` if they want no recording.
    pub(crate) fn start_by(
        settings: &ServerSettings,
        names: &Arc<KeyNames>,
        logs: &Logs,
        now: Micros,
    ) -> Result<Option<RecorderThread>, Report> {
        let bytes_max = settings.record_max_mib.saturating_mul(1 << 20);
        let file = settings.record.as_ref().map(|path| {
            let created = TraceFile::create(path, bytes_max, names.clone());
            created.map(|file| (file, logs.clone())).map_err(|error| {
                Report::new(format!("cannot record to {}: {error}", path.display()))
                    .hint("name a file in a directory that this user may write to")
            })
        });
        let file = file.transpose()?;
        let entries_max = settings.recent_traffic as usize;
        if entries_max == 0 && file.is_none() {
            return Ok(None);
        }
        let started = TrafficRecorder::start(entries_max, file, now);
        started.map(Some).map_err(|error| Report::new(format!("the server cannot start: {error}")))
    }

    /// Starts to keep `entries_max` requests, and to write them into a file if there is one.
    fn start(
        entries_max: usize,
        file: Option<(TraceFile, Logs)>,
        now: Micros,
    ) -> io::Result<RecorderThread> {
        let (messages, received) = sync_channel(CHUNKS_WAITING_MAX);
        let share = Arc::<CurrentShare>::default();
        let ipv6_prefix = Arc::new(AtomicU8::new(64));
        let stripes = Arc::<ChunkStripes>::default();
        let is_reopening = Arc::new(AtomicBool::new(false));
        let recorder = Arc::new(TrafficRecorder {
            sampler: CallerSampler::default(),
            share: share.clone(),
            ipv6_prefix: ipv6_prefix.clone(),
            has_file: file.is_some(),
            is_reopening: is_reopening.clone(),
            stripes: stripes.clone(),
            messages,
            counters: StripedCounters::default(),
            dropped: AtomicU64::new(0),
        });
        let ring = (entries_max > 0).then(|| TrafficRing::new(entries_max, now));
        let file = file.map(|(file, logs)| SortedTraceFile::new(file, logs, stripes, ipv6_prefix));
        let keeper = TrafficKeeper { ring, file, share, is_reopening };
        let thread = background::spawn("tollgate-record", move || keeper.run(&received))?;
        Ok(RecorderThread { recorder, thread })
    }

    /// Records a request, if its caller is in the share.
    pub(crate) fn record(&self, decided: &DecidedRequest<'_>) {
        let Some(facts) = decided.facts() else {
            return self.counters.add(WITHOUT_FACTS, 1);
        };
        let rules = decided.rules();
        let ipv6_prefix = rules.settings().identify.ipv6_prefix;
        if self.ipv6_prefix.load(Ordering::Relaxed) != ipv6_prefix {
            self.ipv6_prefix.store(ipv6_prefix, Ordering::Relaxed);
        }
        // A stated API key may be the user's, of which a replay sees only the hash.
        let user = rules.user_of_caller(facts);
        let stated_key = rules.api_key_of_caller(facts);
        let facts = &Facts { user: user.as_deref(), api_key: stated_key, ..*facts };
        let caller = self.sampler.hash(facts, ipv6_prefix);
        if !self.share.get().includes(caller) {
            return;
        }
        let api_key = facts.api_key.map(hash_credential);
        let mut headers = RecordedHeaders::default();
        if facts.headers.is_some() || facts.host.is_some() {
            for header in rules.recorded_headers() {
                let fields = facts.headers;
                // An upgrade is a list; of all others rules look at all lines together.
                let value = match &*header.name {
                    "upgrade" => fields.and_then(|fields| fields.joined("upgrade")),
                    "host" if facts.host.is_some() => facts.host.map(Cow::Borrowed),
                    name => fields.and_then(|fields| fields.header(name)),
                };
                let Some(value) = value else { continue };
                let value = match header.is_credential {
                    true => hash_header_credential(&header.name, value).into(),
                    false => shown_header_value(&header.name, value),
                };
                let names_caller = header.is_in_key || header.is_credential;
                headers.0.push(PackedHeader { name: &header.name, value, names_caller });
            }
        }
        let path = facts.path.map(shown_url);
        self.add(&RecordedRequest {
            at: decided.at(),
            caller,
            was_allowed: decided.refusal().is_none(),
            cannot_wait: decided.cannot_wait(),
            cost: decided.stated_cost(),
            method: facts.method,
            path: path.as_deref(),
            ip: facts.ip,
            ip_prefix: facts.ip_prefix,
            user: facts.user,
            tier: facts.tier,
            assigned_tier: if self.has_file { rules.tier_of_caller(facts) } else { None },
            api_key: api_key.as_deref(),
            request_bytes: facts.request_bytes,
            headers,
        });
    }

    fn add(&self, request: &RecordedRequest<'_>) {
        let mut chunk = lock(self.stripes.mine());
        if chunk.packed.capacity() == 0 {
            // The only allocation for some hundred requests.
            chunk.packed.reserve_exact(CHUNK_BYTES + ENTRY_BYTES_MAX);
        }
        if !pack(request, &mut chunk.packed) {
            drop(chunk);
            return self.counters.add(LOST, 1);
        }
        chunk.note(request.at);
        let held_us = chunk.last_at.as_u64().saturating_sub(chunk.first_at.as_u64());
        if chunk.packed.len() + ENTRY_BYTES_MAX > CHUNK_BYTES || held_us > CHUNK_HELD_US {
            let full = std::mem::take(&mut *chunk);
            drop(chunk);
            self.hand_over(full);
        }
    }

    /// Gives a chunk to the thread. If that is far behind, the chunk is dropped: no request waits for it.
    fn hand_over(&self, chunk: TrafficChunk) {
        if let Err(
            TrySendError::Full(RecorderMessage::Chunk(chunk))
            | TrySendError::Disconnected(RecorderMessage::Chunk(chunk)),
        ) = self.messages.try_send(RecorderMessage::Chunk(chunk))
        {
            self.dropped.fetch_add(chunk.entries as u64, Ordering::Relaxed);
        }
    }

    /// Gives all chunks to the thread, waiting for it.
    fn flush(&self) {
        for chunk in take_chunks(&self.stripes) {
            let entries = chunk.entries as u64;
            if self.messages.send(RecorderMessage::Chunk(chunk)).is_err() {
                self.dropped.fetch_add(entries, Ordering::Relaxed);
            }
        }
    }

    /// The requests that are recorded, up to this instant. Blocks until the thread has kept what is on its way.
    pub(crate) fn recorded(&self, now: Micros) -> Result<RecordedTraffic, RecvError> {
        self.flush();
        let (reply, shown) = sync_channel(1);
        self.messages.send(RecorderMessage::Show(now, reply)).map_err(|_| RecvError)?;
        shown.recv()
    }

    /// Opens the file again, because its name belongs to another file now. The thread does so within a second.
    pub(crate) fn reopen_file(&self) {
        self.is_reopening.store(true, Ordering::Release);
    }

    /// The requests that were not recorded since the start.
    pub(crate) fn missing(&self) -> MissingRequests {
        let [too_large, without_facts] = self.counters.sums();
        let dropped = self.dropped.load(Ordering::Relaxed);
        MissingRequests { lost: too_large + dropped, without_facts }
    }
}

impl RecorderThread {
    pub(crate) fn recorder(&self) -> Arc<TrafficRecorder> {
        self.recorder.clone()
    }

    /// Keeps what is on its way, and ends the thread.
    pub(crate) fn finish(self) {
        self.recorder.flush();
        if self.recorder.messages.send(RecorderMessage::End).is_ok() {
            // A panic of the thread is logged; nothing is left to do.
            let _ = self.thread.join();
        }
    }
}

/// Takes the chunks of all threads that are not empty.
pub(super) fn take_chunks(stripes: &ChunkStripes) -> impl Iterator<Item = TrafficChunk> {
    let chunks = stripes.all().map(|stripe| std::mem::take(&mut *lock(stripe)));
    chunks.filter(|chunk| chunk.entries > 0)
}

/// Locks a chunk. A poisoned lock is no problem: a half-packed entry ends the chunk early.
fn lock(chunk: &Mutex<TrafficChunk>) -> MutexGuard<'_, TrafficChunk> {
    chunk.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use tollgate::{ManualClock, MemoryStore};
    use tollgate_rules::{Ask, Facts, Gatekeeper, Headers as _, RulesObserver, Source, compile};

    const START: Micros = Micros::new(1_700_000_000_000_000);

    /// An observer that only records.
    struct RecordingObserver(Arc<TrafficRecorder>);

    impl RulesObserver for RecordingObserver {
        fn decided(&self, decided: &DecidedRequest<'_>) {
            self.0.record(decided);
        }
    }

    type TestGatekeeper = Gatekeeper<MemoryStore, Arc<ManualClock>>;

    fn gatekeeper(text: &str, recorder: &RecorderThread) -> TestGatekeeper {
        let rules = compile(&[Source::from_text("rules.yaml", text)]).rules.expect("rules");
        let clock = Arc::new(ManualClock::new(START));
        let gatekeeper = Gatekeeper::new(rules, MemoryStore::new(1_000), clock);
        gatekeeper.observed_by(Arc::new(RecordingObserver(recorder.recorder())))
    }

    const RULES: &str = "rules:
  - name: api
    match: { path: '/api/{*rest}', header: { x-tenant: acme } }
    key: '{user|api_key|ip}'
    limits: [2/minute]
  - { name: secret, match: { header: { authorization: { present: true } } }, key: '{ip}', limits: [1/minute] }";

    #[test]
    fn a_stated_api_key_and_host_are_replayed_as_they_were_decided() {
        let rules = "identify: { user: { api_key: { header: x-api-key } } }
rules: [{ name: api, match: { host: api.example }, key: '{user}', limits: [2/minute] }]";
        let thread = TrafficRecorder::start(1_000, None, START).unwrap();
        let (recorder, live) = (thread.recorder(), gatekeeper(rules, &thread));
        let facts = Facts { host: Some("API.example:1"), api_key: Some("abc"), ..Facts::default() };
        let key_of =
            |answer: &tollgate_rules::Answer| answer.allowed() && answer.binding().is_some();
        assert!(key_of(&live.decide_at(&Ask { facts, ..Ask::default() }, START)));
        let recorded = recorder.recorded(START).unwrap();
        let requests = recorded.requests();
        let [one] = &requests[..] else { panic!("{requests:?}") };
        let hash = hash_credential("abc");
        assert_eq!((one.user, one.api_key), (Some(&*hash), Some(&*hash)));
        let answer = live.decide_at(&Ask { facts: one.facts(), ..Ask::default() }, START);
        assert!(key_of(&answer) && answer.remaining() == 0, "the same caller of the same host");
        drop(requests);
        thread.finish();
    }

    #[test]
    fn one_key_is_one_caller_in_a_replay_however_its_scheme_is_written() {
        let rules = "identify: { user: { api_key: { header: authorization } } }
rules:
  - { name: own, key: '{user}', limits: [9/minute] }
  - { name: key, key: '{api_key}', limits: [9/minute] }
  - { name: field, key: '{header.authorization}', limits: [9/minute] }";
        let thread = TrafficRecorder::start(1_000, None, START).unwrap();
        let (recorder, live) = (thread.recorder(), gatekeeper(rules, &thread));
        let spellings = ["Bearer k", "bearer  k", "BEARER\tk ", "k"];
        fn remaining(gatekeeper: &TestGatekeeper, facts: Facts<'_>) -> u64 {
            gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, START).remaining()
        }
        for (number, spelling) in spellings.into_iter().enumerate() {
            let fields = vec![("authorization", spelling)];
            let facts =
                Facts { api_key: Some(spelling), headers: Some(&fields), ..Facts::default() };
            assert_eq!(remaining(&live, facts), 8 - number as u64, "{spelling:?}");
        }
        let (recorded, other) = (recorder.recorded(START).unwrap(), gatekeeper(rules, &thread));
        let requests = recorded.requests();
        assert_eq!(requests.len(), spellings.len());
        for (number, one) in requests.iter().enumerate() {
            assert_eq!(remaining(&other, one.facts()), 8 - number as u64, "{number}");
        }
        assert!(!recorded.contains_bytes(b"earer"));
        drop(requests);
        thread.finish();
    }

    #[test]
    fn facts_are_recorded_and_credentials_are_not() {
        let thread = TrafficRecorder::start(1_000, None, START).unwrap();
        let (recorder, gatekeeper) = (thread.recorder(), gatekeeper(RULES, &thread));
        let headers =
            vec![("X-Tenant", "acme"), ("Authorization", "Bearer hunter2"), ("X-Other", "o")];
        let facts = Facts {
            method: Some("GET"),
            path: Some("/api/a?token=hunter2"),
            ip: "192.0.2.1".parse().ok(),
            api_key: Some("hunter2"),
            tier: Some("pro"),
            headers: Some(&headers),
            ..Facts::default()
        };
        let ask = Ask { facts, cost: Some(2), cannot_wait: true, ..Ask::default() };
        assert!(!gatekeeper.decide_at(&ask, START).allowed(), "`secret` has room for 1");
        let recorded = recorder.recorded(START).unwrap();
        let requests = recorded.requests();
        let [one] = &requests[..] else { panic!("{requests:?}") };
        assert!(!format!("{recorded:?}{one:?}").contains("hunter2"));
        assert!(!recorded.contains_bytes(b"hunter2"));
        assert_eq!((one.method, one.path, one.tier), (Some("GET"), Some("/api/a"), Some("pro")));
        assert_eq!((one.ip, one.cost, one.cannot_wait), (facts.ip, Some(2), true));
        assert!(!one.was_allowed);
        let names: Vec<_> = one.headers.0.iter().map(|one| (one.name, &*one.value)).collect();
        let hashed = hash_credential("hunter2");
        assert_eq!(names, [("authorization", &*hashed), ("x-tenant", "acme")]);
        assert_eq!(one.api_key, Some(&*hash_credential("hunter2")));
        drop(requests);
        thread.finish();
    }

    #[test]
    fn no_header_that_explain_hides_is_recorded_in_clear() {
        const CREDENTIALS: [&str; 8] = [
            "x-session-id",
            "x-csrf-token",
            "x-client-secret",
            "x-amz-security-token",
            "x-goog-api-key",
            "x-jwt",
            "x-hub-signature",
            "cookie",
        ];
        let names = CREDENTIALS.map(|name| format!("{name}: {{ present: true }}")).join(", ");
        let rules = format!(
            "rules: [{{ name: api, match: {{ header: {{ {names}, referer: {{ present: true }} }} }}, \
             key: '{{ip}}', limits: [1/minute] }}]"
        );
        let thread = TrafficRecorder::start(1_000, None, START).unwrap();
        let (recorder, gatekeeper) = (thread.recorder(), gatekeeper(&rules, &thread));
        let mut headers = CREDENTIALS.map(|name| (name, "hunter2")).to_vec();
        headers.push(("referer", "https://hunter2@app.example/a?token=hunter2"));
        let facts = Facts {
            path: Some("http://hunter2@app.example/a?token=hunter2"),
            ip: "192.0.2.1".parse().ok(),
            headers: Some(&headers),
            ..Facts::default()
        };
        assert!(gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, START).allowed());
        let recorded = recorder.recorded(START).unwrap();
        let requests = recorded.requests();
        let [one] = &requests[..] else { panic!("{requests:?}") };
        assert!(!recorded.contains_bytes(b"hunter2"), "{one:?}");
        let replayed = gatekeeper.decide_at(&Ask { facts: one.facts(), ..Ask::default() }, START);
        assert!(!replayed.allowed(), "the rule applies to it as well");
        assert_eq!(one.headers.header("referer").as_deref(), Some("https://app.example/a"));
        assert_eq!(one.path, Some("http://app.example/a"));
        drop(requests);
        thread.finish();
    }

    #[test]
    fn threads_record_together_and_nothing_is_lost_silently() {
        let thread = TrafficRecorder::start(1_000_000, None, START).unwrap();
        let (recorder, gatekeeper) = (thread.recorder(), gatekeeper(RULES, &thread));
        let (threads, each) = (8, 5_000);
        thread::scope(|scope| {
            for number in 0..threads {
                let gatekeeper = &gatekeeper;
                scope.spawn(move || {
                    let user = number.to_string();
                    let facts = Facts { user: Some(&user), path: Some("/b"), ..Facts::default() };
                    for turn in 0..each {
                        let at = Micros::new(START.as_u64() + turn);
                        gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, at);
                    }
                });
            }
        });
        let long = "x".repeat(ENTRY_BYTES_MAX);
        let facts = Facts { path: Some(&long), ..Facts::default() };
        gatekeeper.decide_at(&Ask { facts, ..Ask::default() }, START);
        let recorded = recorder.recorded(Micros::new(START.as_u64() + each)).unwrap();
        let requests = recorded.requests().len() as u64;
        let MissingRequests { lost, without_facts } = recorder.missing();
        assert_eq!((requests + lost, without_facts), (threads * each + 1, 0));
        assert!(lost >= 1, "the long path");
        thread.finish();
    }
}
