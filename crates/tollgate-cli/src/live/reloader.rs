//! The thread that replaces rules: it alone reads, compiles and puts in force.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tollgate::Micros;
use tollgate_rules::changes::Changes;
use tollgate_rules::{Compilation, Diagnostics, NamedFile, RuleSet, Severity};

use super::debounce::Debounce;
use super::origin::{InitialRules, RulesContent, RulesInput, RulesSource, log_warnings};
use super::peer_changes::PeerChanges;
use super::watch::{RulesWatch, WatchMode, system_watcher};
use super::{
    BUG, FailedReload, LiveRules, Message, ReloadCause, ReloadHint, ReloadOutcome, RulesOrigin,
    WatchMethod,
};
use crate::credentials::Credentials;
use crate::store::ServerGatekeeper;
use crate::telemetry::{LogField, Logs};

/// The most bytes of what is kept of an attempt that failed. The compiler shows at most 100 errors;
/// whoever needs more has to mend the first ones first.
const DIAGNOSTICS_BYTES_MAX: usize = 64 << 10;

/// Old rules that requests still use. Bound of the list; the oldest is left to its last user.
const RETIRED_MAX: usize = 8;

/// How soon to look whether old rules are still in use.
const RELEASE_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Reloader {
    pub(super) gatekeeper: Arc<ServerGatekeeper>,
    pub(super) live: LiveRules,
    pub(super) logs: Logs,
    source: RulesSource,
    /// What is read again with the rules, if somebody asks.
    credentials: Credentials,
    /// Where texts that are put stand.
    pub(super) folder: PathBuf,
    watch: RulesWatch,
    debounce: Debounce,
    /// Why the next reading is due.
    cause: ReloadCause,
    next_look: Option<Micros>,
    /// What the files said last, right or wrong: the same again is no news.
    pub(super) files_input: RulesInput,
    /// What the rules in force were made of.
    pub(super) input_in_force: RulesInput,
    /// The files that those name, as they were when they were last tried, right or wrong.
    tried_named_files: Vec<NamedFile>,
    /// What the files said when the rules in force were put over them.
    pub(super) files_when_put: Option<RulesContent>,
    /// What the other instances tell, and are told.
    pub(super) peer_changes: PeerChanges,
    /// Freeing a thousand rules takes a while, and should not fall to a request.
    retired: Vec<Arc<RuleSet>>,
}

impl Reloader {
    pub(super) fn new(
        gatekeeper: Arc<ServerGatekeeper>,
        first: InitialRules,
        live: LiveRules,
        logs: Logs,
    ) -> Reloader {
        let InitialRules { source: from, input: made_of, fingerprints: prints } = first;
        let hints = live.clone();
        let teller = system_watcher(move |hint| hints.hint(hint));
        Reloader {
            gatekeeper,
            live,
            logs,
            watch: RulesWatch::new(from.paths.clone(), from.watch, prints, teller),
            folder: from.folder(),
            source: from,
            credentials: Credentials::default(),
            debounce: Debounce::default(),
            cause: ReloadCause::Files,
            next_look: None,
            files_input: made_of.clone(),
            tried_named_files: made_of.named_files.clone(),
            input_in_force: made_of,
            files_when_put: None,
            peer_changes: PeerChanges::default(),
            retired: Vec::new(),
        }
    }

    /// Reads these again too, whenever somebody asks.
    pub(super) fn set_credentials(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// Begins to watch: from here on no change is missed.
    pub(super) fn begin(&mut self) {
        self.catch_bug(|this| {
            this.watch_files();
            this.watch_named_files();
            this.look();
        });
    }

    /// Until the end of the process.
    pub(super) fn run(mut self, inbox: Receiver<Message>) {
        loop {
            let message = match inbox.recv_timeout(self.time_until_due()) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => Message::Wake,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.catch_bug(|this| this.answer(message));
            self.catch_bug(Reloader::tick);
        }
    }

    /// A bug in here must not be the end of new rules: the log has it, the status shows it, and what
    /// was due is over.
    pub(super) fn catch_bug(&mut self, act: impl FnOnce(&mut Reloader)) {
        if catch_unwind(AssertUnwindSafe(|| act(self))).is_err() {
            self.live.record_bug(self.gatekeeper.now(), BUG);
        }
    }

    /// Whoever asked may have gone away.
    fn answer(&mut self, message: Message) {
        match message {
            Message::Wake => {}
            Message::Reload(reply) => drop(reply.send(self.reload(ReloadCause::Reload))),
            Message::Put(text, reply) => drop(reply.send(self.put(&text))),
            Message::ApplyPeerChanges(reply) => {
                self.apply_peer_changes();
                let _ = reply.send(());
            }
        }
    }

    /// What is due by now.
    fn tick(&mut self) {
        self.retired.retain(|rules| Arc::strong_count(rules) > 1);
        let now = self.gatekeeper.now();
        for hint in self.live.clone().take_hints() {
            self.hint(hint, now);
        }
        self.apply_peer_changes();
        if self.next_look.is_some_and(|due| due <= now) {
            self.look();
        }
        if self.debounce.settled(self.gatekeeper.now()) {
            let cause = std::mem::replace(&mut self.cause, ReloadCause::Files);
            self.reload(cause);
        }
    }

    /// How long nothing is due.
    fn time_until_due(&self) -> Duration {
        let due = [self.debounce.due(), self.next_look].into_iter().flatten().min();
        let now = self.gatekeeper.now().as_u64();
        let until = due.map(|due| Duration::from_micros(due.as_u64().saturating_sub(now)));
        let release = (!self.retired.is_empty()).then_some(RELEASE_EVERY);
        until.into_iter().chain(release).min().unwrap_or(Duration::from_secs(3_600))
    }

    fn hint(&mut self, hint: ReloadHint, now: Micros) {
        if hint.cause().is_requested() {
            self.cause = hint.cause();
        }
        self.debounce.hint(now, hint.quiet());
    }

    /// Looks at the files from outside.
    fn look(&mut self) {
        let now = self.gatekeeper.now();
        self.next_look = self.watch.look_every().map(|wait| now.after(wait));
        // Whoever wants nothing watched wants no surprise either.
        if self.next_look.is_some() && self.watch.look() {
            self.hint(ReloadHint::Written, now);
        }
    }

    /// Reads again what the settings name.
    pub(super) fn reload(&mut self, cause: ReloadCause) -> ReloadOutcome {
        if matches!(cause, ReloadCause::Signal | ReloadCause::Reload) {
            self.read_credentials(cause);
        }
        // Both before reading: what happens from here on is noticed.
        self.watch_files();
        self.watch.look();
        let was_put = self.files_when_put.is_some();
        let found = self.source.read();
        let outcome = if self.files_input.is_unchanged(&found) && !cause.is_requested() {
            // Whatever was said about it has been said.
            ReloadOutcome::Unchanged { version: self.live.status().version }
        } else if self.input_in_force.is_unchanged(&found) {
            self.files_input = self.input_in_force.clone();
            self.unchanged(cause)
        } else {
            self.take_files(found, cause)
        };
        self.recompile_in_force();
        if was_put
            && self.files_when_put.is_none()
            && matches!(cause, ReloadCause::Signal | ReloadCause::Reload)
        {
            self.withdraw_put_rules();
        }
        self.apply_offered_rules();
        self.watch_named_files();
        outcome
    }

    /// Tokens and certificate go their own way: neither they nor the rules wait for the other to be right.
    fn read_credentials(&self, cause: ReloadCause) {
        let wrong = self.credentials.reload(&self.logs);
        let texts: Vec<String> = wrong.iter().map(|report| format!("error: {report}")).collect();
        let failed = FailedReload {
            at: self.gatekeeper.now(),
            cause,
            errors: wrong.len(),
            diagnostics: texts.join("\n\n"),
        };
        let failed = (!wrong.is_empty()).then_some(failed);
        self.live.update(|status| status.credentials_failed = failed);
    }

    fn take_files(&mut self, found: RulesContent, cause: ReloadCause) -> ReloadOutcome {
        let Compilation { rules, diagnostics, named_files: named } = self.source.compile(&found);
        let files = RulesInput { content: found, named_files: named };
        self.files_input = files.clone();
        // Compared with what they said when it was put, whatever they said meanwhile.
        let stays = self.files_when_put.as_ref() == Some(&files.content) && !cause.is_requested();
        match rules {
            None => self.refuse(&diagnostics, cause),
            // What was put stays until the rules files say something else, or somebody asks.
            Some(_) if stays => self.files_right_again(),
            Some(rules) => self.put_in_force(files, rules, &diagnostics, cause),
        }
    }

    /// Puts a text in force that no file has.
    pub(super) fn put(&mut self, text: &[u8]) -> ReloadOutcome {
        let outcome = self.put_for(text, ReloadCause::Put);
        if let ReloadOutcome::Loaded { .. } | ReloadOutcome::Unchanged { .. } = outcome {
            self.publish_put_rules(text);
        }
        outcome
    }

    pub(super) fn put_for(&mut self, text: &[u8], cause: ReloadCause) -> ReloadOutcome {
        let found = RulesContent::put(text, &self.folder);
        if self.input_in_force.is_unchanged(&found) {
            return self.unchanged(cause);
        }
        let outcome = self.take(found, cause);
        self.watch_named_files();
        outcome
    }

    /// Makes the rules in force anew if a file that they name has changed, while the rules files say
    /// something else: they are wrong, or a text was put.
    fn recompile_in_force(&mut self) {
        let has_news = self.tried_named_files.iter().any(|file| !file.is_current());
        if self.input_in_force.content != self.files_input.content && has_news {
            self.take(self.input_in_force.content.clone(), ReloadCause::Keys);
        }
    }

    fn take(&mut self, found: RulesContent, cause: ReloadCause) -> ReloadOutcome {
        let Compilation { rules, diagnostics, named_files: named } = self.source.compile(&found);
        if cause == ReloadCause::Keys {
            self.tried_named_files.clone_from(&named);
        }
        let made_of = RulesInput { content: found, named_files: named };
        match rules {
            None => self.refuse(&diagnostics, cause),
            Some(_) if made_of == self.input_in_force => self.unchanged(cause),
            Some(rules) => self.put_in_force(made_of, rules, &diagnostics, cause),
        }
    }

    fn put_in_force(
        &mut self,
        made_of: RulesInput,
        rules: RuleSet,
        diagnostics: &Diagnostics,
        cause: ReloadCause,
    ) -> ReloadOutcome {
        let old = Arc::clone(&self.gatekeeper.rules());
        let origin = match cause {
            ReloadCause::Files
            | ReloadCause::Signal
            | ReloadCause::Reload
            | ReloadCause::ReloadAtPeer => self.source.origin(),
            ReloadCause::Put | ReloadCause::PutAtPeer => RulesOrigin::Put,
            ReloadCause::Keys => self.live.status().origin.clone(),
        };
        match cause {
            ReloadCause::Files
            | ReloadCause::Signal
            | ReloadCause::Reload
            | ReloadCause::ReloadAtPeer => {
                self.files_when_put = None;
            }
            ReloadCause::Put | ReloadCause::PutAtPeer => {
                self.files_when_put = Some(self.files_input.content.clone())
            }
            ReloadCause::Keys => {}
        }
        let now = self.gatekeeper.now();
        let changes = self.live.with_change_lock(|| {
            let changes = self.gatekeeper.replace(rules);
            self.live.update(|status| {
                status.version += 1;
                status.loads += 1;
                status.loaded_at = now;
                status.origin = origin;
                status.keys_failed = None;
                *status.failure_mut(cause) = None;
            });
            changes
        });
        self.retry_overrides();
        self.retire(old);
        self.tried_named_files.clone_from(&made_of.named_files);
        self.input_in_force = made_of;
        let version = self.live.status().version;
        self.log_loaded(&changes, diagnostics, (version, cause));
        ReloadOutcome::Loaded { version, changes, warnings: text_of(diagnostics) }
    }

    fn log_loaded(
        &self,
        changes: &Changes,
        found: &Diagnostics,
        (version, cause): (u64, ReloadCause),
    ) {
        let warnings = found.count(Severity::Warning);
        let counts = [changes.added.len(), changes.removed.len(), changes.changed.len()];
        let fresh = changes.fresh.join(", ");
        let mut fields: Vec<LogField<'_>> = vec![
            ("version", &version),
            ("cause", &cause),
            ("added", &counts[0]),
            ("removed", &counts[1]),
            ("changed", &counts[2]),
            ("unchanged", &changes.unchanged),
            ("warnings", &warnings),
        ];
        for (name, changed) in [("settings", changes.settings), ("overrides", changes.overrides)] {
            fields.extend(changed.then_some((name, &"changed" as _)));
        }
        if !fresh.is_empty() {
            fields.push(("start_fresh", &fresh));
        }
        self.logs.info("new rules are in force", &fields);
        log_warnings(found, &self.logs);
    }

    fn refuse(&self, diagnostics: &Diagnostics, cause: ReloadCause) -> ReloadOutcome {
        let errors = diagnostics.count(Severity::Error);
        let text = text_of(diagnostics);
        let failed =
            FailedReload { at: self.gatekeeper.now(), cause, errors, diagnostics: text.clone() };
        self.live.update(|status| {
            status.failures += 1;
            *status.failure_mut(cause) = Some(failed);
        });
        let version = self.live.status().version;
        let mut fields: Vec<LogField<'_>> = vec![("version", &version), ("cause", &cause)];
        let first = diagnostics.iter().find(|one| one.severity == Severity::Error);
        let place = first.map(|first| match first.span() {
            Some(span) => format!("{}:{}:{}", first.file, span.line, span.column),
            None => first.file.clone(),
        });
        if let (Some(first), Some(place)) = (first, &place) {
            fields.extend([("at", place as _), ("error", &first.message as _)]);
            fields.extend(first.hint.as_ref().map(|hint| ("hint", hint as _)));
        }
        fields.push(("errors", &errors));
        self.logs.error("the new rules are wrong, the old ones stay in force", &fields);
        ReloadOutcome::Refused { diagnostics: text, errors }
    }

    /// What is there is in force already.
    fn unchanged(&self, cause: ReloadCause) -> ReloadOutcome {
        let version = self.live.status().version;
        let mut is_news = cause.is_requested();
        self.live.update(|status| {
            is_news |= status.failure_mut(cause).take().is_some();
            status.keys_failed = None;
            status.unchanged += u64::from(is_news);
        });
        if is_news {
            let fields: [LogField<'_>; 2] = [("version", &version), ("cause", &cause)];
            self.logs.info("the rules are the ones in force", &fields);
        }
        ReloadOutcome::Unchanged { version }
    }

    /// Nothing is wrong with the files any more, but something else was put.
    fn files_right_again(&self) -> ReloadOutcome {
        let version = self.live.status().version;
        let mut failed = None;
        self.live.update(|status| failed = status.failed.take());
        if failed.is_some() {
            let fields: [LogField<'_>; 1] = [("version", &version)];
            self.logs.info("the rules files are right again, what was put stays in force", &fields);
        }
        ReloadOutcome::Unchanged { version }
    }

    /// Keeps old rules until nobody uses them.
    fn retire(&mut self, old: Arc<RuleSet>) {
        if self.retired.len() == RETIRED_MAX {
            self.retired.remove(0);
        }
        self.retired.push(old);
    }

    /// Watches over the files that rules name, also if these are wrong. They were read before anybody
    /// watched over them, so that they are looked at once more.
    fn watch_named_files(&mut self) {
        let named = self.files_input.named_files.iter().chain(&self.input_in_force.named_files);
        if self.watch.set_named_files(named.map(|file| file.path().into()).collect()) {
            self.watch_files();
            if self.watch.look_every().is_some() {
                self.hint(ReloadHint::Written, self.gatekeeper.now());
            }
        }
    }

    /// Asks for events from where the files are today.
    fn watch_files(&mut self) {
        let watching = self.watch.follow();
        if self.live.status().watching == watching {
            return;
        }
        let now = self.gatekeeper.now();
        self.next_look = self.watch.look_every().map(|wait| now.after(wait));
        if let WatchMethod::Polling(reason) = &watching {
            let fields: [LogField<'_>; 1] = [("reason", reason)];
            let event = "rules files are looked at every second, not watched";
            match self.source.watch.mode {
                WatchMode::Poll => self.logs.info(event, &fields),
                WatchMode::Events | WatchMode::Off => self.logs.warn(event, &fields),
            }
        }
        self.live.update(|status| status.watching = watching);
    }
}

/// As people read them, cut where it becomes too much.
fn text_of(diagnostics: &Diagnostics) -> String {
    if diagnostics.is_empty() {
        return String::new();
    }
    let mut text = diagnostics.to_string();
    if text.len() > DIAGNOSTICS_BYTES_MAX {
        text.truncate(text.floor_char_boundary(DIAGNOSTICS_BYTES_MAX));
        text.push_str("\n… and more");
    }
    text
}
