//! The thread that replaces rules: it alone reads, compiles and applies them.

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
use super::peer_changes::{PeerChanges, unproven_change};
use super::watch::{RulesWatch, WatchMode, system_watcher};
use super::{
    BUG, FailedReload, LiveRules, Message, ReloadCause, ReloadHint, ReloadOutcome, RulesOrigin,
    WatchMethod,
};
use crate::credentials::Credentials;
use crate::store::ServerGatekeeper;
use crate::telemetry::{LogField, Logs};

/// Most bytes of diagnostics that are kept of a failed attempt. The compiler shows at most 100 errors.
const DIAGNOSTICS_BYTES_MAX: usize = 64 << 10;

/// Most old rule sets that are kept while requests still use them; beyond that the last request frees the
/// oldest.
const RETIRED_MAX: usize = 8;

/// Interval between two checks whether old rules are still in use.
const RELEASE_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Reloader {
    pub(super) gatekeeper: Arc<ServerGatekeeper>,
    pub(super) live: LiveRules,
    pub(super) logs: Logs,
    source: RulesSource,
    /// Credentials, which are read again with the rules on request.
    credentials: Credentials,
    /// Folder for relative paths in rules that are put.
    pub(super) folder: PathBuf,
    watch: RulesWatch,
    debounce: Debounce,
    /// Cause of the next reload.
    cause: ReloadCause,
    next_look: Option<Micros>,
    /// Last content of the files, valid or not, to detect changes.
    pub(super) files_input: RulesInput,
    /// Input of the rules in force.
    pub(super) input_in_force: RulesInput,
    /// The files that the rules in force name, as they were at the last attempt, valid or not.
    tried_named_files: Vec<NamedFile>,
    /// Content of the files when the rules in force were put.
    pub(super) files_when_put: Option<RulesContent>,
    /// Changes from and to other instances.
    pub(super) peer_changes: PeerChanges,
    /// Old rules, kept until no request uses them: a request should not have to free a thousand rules.
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

    /// Sets the credentials that a requested reload reads again.
    pub(super) fn set_credentials(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// Starts to watch: from here on no change is missed.
    pub(super) fn begin(&mut self) {
        self.catch_bug(|this| {
            this.watch_files();
            this.watch_named_files();
            this.look();
        });
    }

    /// Runs until the process ends.
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

    /// Runs a step and catches a panic in it, so that later reloads still work. The log and the status show
    /// the bug.
    pub(super) fn catch_bug(&mut self, act: impl FnOnce(&mut Reloader)) {
        if catch_unwind(AssertUnwindSafe(|| act(self))).is_err() {
            self.live.record_bug(self.gatekeeper.now(), BUG);
        }
    }

    /// Handles a message. Its sender may no longer wait for the answer.
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

    /// Does the work that is due.
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

    /// Time until work is due.
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

    /// Polls the fingerprints of the files.
    fn look(&mut self) {
        let now = self.gatekeeper.now();
        self.next_look = self.watch.look_every().map(|wait| now.after(wait));
        // With watching off, only requests reload.
        if self.next_look.is_some() && self.watch.look() {
            self.hint(ReloadHint::Written, now);
        }
    }

    /// Reads the rules of the settings again.
    pub(super) fn reload(&mut self, cause: ReloadCause) -> ReloadOutcome {
        if matches!(cause, ReloadCause::Signal | ReloadCause::Reload) {
            self.read_credentials(cause);
        }
        // Both before reading, so that later changes are noticed.
        self.watch_files();
        self.watch.look();
        let was_put = self.files_when_put.is_some();
        let found = self.source.read();
        let outcome = if self.files_input.is_unchanged(&found) && !cause.is_requested() {
            // The content has been reported already.
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

    /// Reads tokens and certificate again, independently of the rules.
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
        // Compared with their content when the rules were put, whatever it was in between.
        let stays = self.files_when_put.as_ref() == Some(&files.content) && !cause.is_requested();
        match rules {
            None => self.refuse(&diagnostics, cause),
            // Rules that were put stay until the files change or a reload is requested.
            Some(_) if stays => self.files_right_again(),
            Some(rules) => self.put_in_force(files, rules, &diagnostics, cause),
        }
    }

    /// Applies a text that is in no file.
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

    /// Compiles the rules in force again if a file that they name has changed while they differ from the
    /// rules files: those are invalid, or rules were put.
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
            Some(rules) if cause == ReloadCause::PutAtUnknownPeer && self.redirects(&rules) => {
                self.refuse(&unproven_change().into(), cause)
            }
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
            ReloadCause::Put | ReloadCause::PutAtPeer | ReloadCause::PutAtUnknownPeer => {
                RulesOrigin::Put
            }
            ReloadCause::Keys => self.live.status().origin.clone(),
        };
        match cause {
            ReloadCause::Files
            | ReloadCause::Signal
            | ReloadCause::Reload
            | ReloadCause::ReloadAtPeer => {
                self.files_when_put = None;
            }
            ReloadCause::Put | ReloadCause::PutAtPeer | ReloadCause::PutAtUnknownPeer => {
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
        let diff = made_of.content.diff_from(&self.input_in_force.content);
        self.input_in_force = made_of;
        let version = self.live.status().version;
        self.log_loaded(&changes, diagnostics, (version, cause));
        let outcome = ReloadOutcome::Loaded { version, changes, warnings: text_of(diagnostics) };
        self.live.record_reload(now, cause, &outcome, diff);
        outcome
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
        self.logs.info("rules reloaded", &fields);
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
        self.logs.error("the new rules are invalid, the old ones stay in force", &fields);
        let outcome = ReloadOutcome::Refused { diagnostics: text, errors };
        self.live.record_reload(self.gatekeeper.now(), cause, &outcome, String::new());
        outcome
    }

    /// Reports that the rules are already in force.
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
            self.logs.info("the rules are unchanged", &fields);
        }
        let outcome = ReloadOutcome::Unchanged { version };
        if is_news {
            self.live.record_reload(self.gatekeeper.now(), cause, &outcome, String::new());
        }
        outcome
    }

    /// Reports that the files are valid again while rules that were put stay in force.
    fn files_right_again(&self) -> ReloadOutcome {
        let version = self.live.status().version;
        let mut failed = None;
        self.live.update(|status| failed = status.failed.take());
        if failed.is_some() {
            let fields: [LogField<'_>; 1] = [("version", &version)];
            self.logs.info(
                "rules files are valid again; rules set with PUT /api/rules stay active",
                &fields,
            );
        }
        ReloadOutcome::Unchanged { version }
    }

    /// Keeps old rules until no request uses them.
    fn retire(&mut self, old: Arc<RuleSet>) {
        if self.retired.len() == RETIRED_MAX {
            self.retired.remove(0);
        }
        self.retired.push(old);
    }

    /// Watches the files that rules name, also if the rules are invalid. New ones were read before the watch
    /// began, so they are checked once more.
    fn watch_named_files(&mut self) {
        let named = self.files_input.named_files.iter().chain(&self.input_in_force.named_files);
        if self.watch.set_named_files(named.map(|file| file.path().into()).collect()) {
            self.watch_files();
            if self.watch.look_every().is_some() {
                self.hint(ReloadHint::Written, self.gatekeeper.now());
            }
        }
    }

    /// Updates the watched directories to where the files are now.
    fn watch_files(&mut self) {
        let watching = self.watch.follow();
        if self.live.status().watching == watching {
            return;
        }
        let now = self.gatekeeper.now();
        self.next_look = self.watch.look_every().map(|wait| now.after(wait));
        if let WatchMethod::Polling(reason) = &watching {
            let fields: [LogField<'_>; 1] = [("reason", reason)];
            let event = "rules files are polled every second instead of watched";
            match self.source.watch.mode {
                WatchMode::Poll => self.logs.info(event, &fields),
                WatchMode::Events | WatchMode::Off => self.logs.warn(event, &fields),
            }
        }
        self.live.update(|status| status.watching = watching);
    }
}

/// Diagnostics as text, shortened to [`DIAGNOSTICS_BYTES_MAX`].
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
