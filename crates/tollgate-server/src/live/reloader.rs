//! The thread that replaces rules: it alone reads, compiles and puts in force.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tollgate::Micros;
use tollgate_rules::changes::Changes;
use tollgate_rules::{Compiled, Diagnostics, Gatekeeper, RuleSet, Severity};

use super::debounce::Debounce;
use super::origin::{First, Found, RulesFrom};
use super::prints::Prints;
use super::watch::{Watch, of_the_system};
use super::{Cause, Failed, Hint, LiveRules, Message, Origin, Reloaded, Watching};
use crate::telemetry::{Field, Logs};

/// The most bytes of what is kept of an attempt that failed. The compiler shows at most 100 errors;
/// whoever needs more has to mend the first ones first.
const DIAGNOSTICS_BYTES_MAX: usize = 64 << 10;

/// The most warnings that are logged one by one.
const WARNINGS_LOGGED_MAX: usize = 10;

/// Old rules that requests still use. Bound of the list; the oldest is left to its last user.
const RETIRED_MAX: usize = 8;

/// How soon to look whether old rules are still in use.
const RELEASE_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Reloader {
    gatekeeper: Arc<Gatekeeper>,
    live: LiveRules,
    logs: Logs,
    from: RulesFrom,
    watch: Watch,
    debounce: Debounce,
    /// Why the next reading is due.
    cause: Cause,
    next_look: Option<Micros>,
    /// What was found last, right or wrong: the same again is no news.
    found: Found,
    /// What the rules in force were made of.
    in_force: Found,
    /// How the file with the keys of tokens was when they were made; nothing if that is not known.
    keys: Prints,
    /// Freeing a thousand rules takes a while, and should not fall to a request.
    retired: Vec<Arc<RuleSet>>,
}

impl Reloader {
    pub(super) fn new(
        gatekeeper: Arc<Gatekeeper>,
        first: First,
        live: LiveRules,
        logs: Logs,
    ) -> Reloader {
        let First { from, found, prints } = first;
        let hints = live.clone();
        let teller = of_the_system(move |hint| hints.hint(hint));
        Reloader {
            gatekeeper,
            live,
            logs,
            watch: Watch::new(from.paths.clone(), from.watch, prints, teller),
            from,
            debounce: Debounce::default(),
            cause: Cause::Files,
            next_look: None,
            in_force: found.clone(),
            found,
            keys: Prints::default(),
            retired: Vec::new(),
        }
    }

    /// Until the end of the process.
    pub(super) fn run(mut self, inbox: &Receiver<Message>) {
        self.go_on(|this| {
            this.follow();
            this.follow_keys();
            this.look();
        });
        loop {
            let message = match inbox.recv_timeout(self.patience()) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => Message::Wake,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.go_on(|this| this.answer(message));
            self.go_on(Reloader::tick);
        }
    }

    /// A bug in here must not be the end of new rules: the log has it, and what was due is over.
    fn go_on(&mut self, act: impl FnOnce(&mut Reloader)) {
        let _ = catch_unwind(AssertUnwindSafe(|| act(self)));
    }

    /// Whoever asked may have gone away.
    fn answer(&mut self, message: Message) {
        match message {
            Message::Wake => {}
            Message::Reload(reply) => drop(reply.send(self.reload(Cause::Reload))),
            Message::Put(text, reply) => drop(reply.send(self.put(&text))),
        }
    }

    /// What is due by now.
    fn tick(&mut self) {
        self.retired.retain(|rules| Arc::strong_count(rules) > 1);
        let now = self.gatekeeper.now();
        for hint in self.live.clone().take_hints() {
            self.hint(hint, now);
        }
        if self.next_look.is_some_and(|due| due <= now) {
            self.look();
        }
        if self.debounce.settled(self.gatekeeper.now()) {
            let cause = std::mem::replace(&mut self.cause, Cause::Files);
            self.reload(cause);
        }
    }

    /// How long nothing is due.
    fn patience(&self) -> Duration {
        let due = [self.debounce.due(), self.next_look].into_iter().flatten().min();
        let now = self.gatekeeper.now().as_u64();
        let until = due.map(|due| Duration::from_micros(due.as_u64().saturating_sub(now)));
        let release = (!self.retired.is_empty()).then_some(RELEASE_EVERY);
        until.into_iter().chain(release).min().unwrap_or(Duration::from_secs(3_600))
    }

    fn hint(&mut self, hint: Hint, now: Micros) {
        if hint.cause().is_asked() {
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
            self.hint(Hint::Written, now);
        }
    }

    /// Reads again what the settings name.
    fn reload(&mut self, cause: Cause) -> Reloaded {
        // Both before reading: what happens from here on is noticed.
        self.follow();
        self.watch.look();
        let keys = self.prints_of_keys();
        let same_keys = std::mem::replace(&mut self.keys, keys.clone()) == keys;
        let found = self.from.read();
        let seen = std::mem::replace(&mut self.found, found.clone());
        if found == self.in_force && same_keys {
            self.unchanged(cause)
        } else if found == seen && same_keys && !cause.is_asked() {
            // Whatever was said about it has been said.
            Reloaded::Unchanged { version: self.live.status().version }
        } else {
            self.replace(found, cause, self.from.origin())
        }
    }

    /// Puts a text in force that no file has.
    fn put(&mut self, text: &[u8]) -> Reloaded {
        let found = Found::put(text);
        if found == self.in_force {
            return self.unchanged(Cause::Put);
        }
        self.replace(found, Cause::Put, Origin::Put)
    }

    fn replace(&mut self, found: Found, cause: Cause, origin: Origin) -> Reloaded {
        let Compiled { rules, diagnostics } = found.compile();
        let Some(rules) = rules else { return self.refuse(&diagnostics, cause) };
        let old = Arc::clone(&self.gatekeeper.rules());
        if found == self.in_force && Changes::between(&old, &rules).is_empty() {
            return self.unchanged(cause);
        }
        let changes = self.gatekeeper.replace(rules);
        self.retire(old);
        self.in_force = found;
        self.follow_keys();
        let now = self.gatekeeper.now();
        self.live.update(|status| {
            status.version += 1;
            status.loads += 1;
            status.loaded_at = now;
            status.origin = origin;
            status.failed = None;
        });
        let version = self.live.status().version;
        self.tell_of(&changes, &diagnostics, (version, cause));
        Reloaded::Loaded { version, changes, warnings: text_of(&diagnostics) }
    }

    fn tell_of(&self, changes: &Changes, found: &Diagnostics, (version, cause): (u64, Cause)) {
        let warnings = found.count(Severity::Warning);
        let counts = [changes.added.len(), changes.removed.len(), changes.changed.len()];
        let fresh = changes.fresh.join(", ");
        let mut fields: Vec<Field<'_>> = vec![
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
        for diagnostic in found.iter().take(WARNINGS_LOGGED_MAX) {
            let line = diagnostic.span().map_or(0, |span| span.line);
            let fields: [Field<'_>; 3] =
                [("file", &diagnostic.file), ("line", &line), ("warning", &diagnostic.message)];
            self.logs.warn("the rules have a weakness", &fields);
        }
    }

    fn refuse(&self, diagnostics: &Diagnostics, cause: Cause) -> Reloaded {
        let errors = diagnostics.count(Severity::Error);
        let text = text_of(diagnostics);
        let failed = Failed { at: self.gatekeeper.now(), cause, errors, diagnostics: text.clone() };
        self.live.update(|status| {
            status.failures += 1;
            status.failed = Some(failed);
        });
        let version = self.live.status().version;
        let mut fields: Vec<Field<'_>> = vec![("version", &version), ("cause", &cause)];
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
        Reloaded::Refused { diagnostics: text, errors }
    }

    /// What is there is in force already.
    fn unchanged(&self, cause: Cause) -> Reloaded {
        let status = self.live.status();
        let version = status.version;
        if status.failed.is_some() || cause.is_asked() {
            self.live.update(|status| {
                status.failed = None;
                status.unchanged += 1;
            });
            let fields: [Field<'_>; 2] = [("version", &version), ("cause", &cause)];
            self.logs.info("the rules are the ones in force", &fields);
        }
        Reloaded::Unchanged { version }
    }

    /// Keeps old rules until nobody uses them.
    fn retire(&mut self, old: Arc<RuleSet>) {
        if self.retired.len() == RETIRED_MAX {
            self.retired.remove(0);
        }
        self.retired.push(old);
    }

    /// Watches over the file with the keys of tokens, if the rules in force name one. It was read before
    /// anybody watched over it, so that it is read once more.
    fn follow_keys(&mut self) {
        let file = self.gatekeeper.rules().settings().identify.keys_file().map(Into::into);
        let there = file.is_some();
        if self.watch.also(file) {
            self.keys = Prints::default();
            self.follow();
            if there && self.watch.look_every().is_some() {
                self.hint(Hint::Written, self.gatekeeper.now());
            }
        }
    }

    fn prints_of_keys(&self) -> Prints {
        let rules = self.gatekeeper.rules();
        let file = rules.settings().identify.keys_file();
        file.map_or_else(Prints::default, |file| Prints::of(&[file.into()]))
    }

    /// Asks for events from where the files are today.
    fn follow(&mut self) {
        let watching = self.watch.follow();
        if self.live.status().watching == watching {
            return;
        }
        let now = self.gatekeeper.now();
        self.next_look = self.watch.look_every().map(|wait| now.after(wait));
        if let Watching::Polling(reason) = &watching {
            let fields: [Field<'_>; 1] = [("reason", reason)];
            self.logs.warn("rules files are looked at every second, not watched", &fields);
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
