//! A gatekeeper that is asked descriptors at chosen instants, in a short notation.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tollgate::{ManualClock, MemoryStore, Micros, Store};
use tollgate_rules::gatekeeper::expect_ready;
use tollgate_rules::{
    Descriptor, DescriptorAnswer, DescriptorAsk, DescriptorEntry, DescriptorError, Gatekeeper,
    Hits, RuleSet, Source, StatedLimit, Status, Unit, compile,
};

/// 2026-11-15 12:00:00 UTC: the beginning of an hour, a day less twelve hours.
pub(crate) const NOON: u64 = 1_794_744_000;

pub(crate) struct DescriptorGate<S = MemoryStore> {
    pub(crate) gatekeeper: Gatekeeper<Arc<S>, ManualClock>,
    pub(crate) store: Arc<S>,
    pub(crate) now: Micros,
}

/// The rules of these files.
pub(crate) fn rules(texts: &[&str]) -> RuleSet {
    let names = ["one.yaml", "two.yaml", "three.yaml"];
    let files: Vec<Source> =
        texts.iter().zip(names).map(|(text, name)| Source::from_text(name, text)).collect();
    let compiled = compile(&files);
    compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics))
}

/// One descriptor: its entries, and what it asks for.
#[derive(Clone)]
pub(crate) struct TestDescriptor {
    entries: Vec<(String, String)>,
    hits: Option<Hits>,
    limit: Option<StatedLimit>,
}

/// A descriptor of these entries, for the usual cost.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> TestDescriptor {
    let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    TestDescriptor { entries: entries.iter().map(own).collect(), hits: None, limit: None }
}

impl TestDescriptor {
    pub(crate) fn hits(self, hits: u64) -> TestDescriptor {
        TestDescriptor { hits: Some(Hits::Take(hits)), ..self }
    }

    pub(crate) fn refund(self, hits: u64) -> TestDescriptor {
        TestDescriptor { hits: Some(Hits::Refund(Some(hits))), ..self }
    }

    /// What a take would cost.
    pub(crate) fn refund_cost(self) -> TestDescriptor {
        TestDescriptor { hits: Some(Hits::Refund(None)), ..self }
    }

    pub(crate) fn force(self, hits: u64) -> TestDescriptor {
        TestDescriptor { hits: Some(Hits::Force(hits)), ..self }
    }

    pub(crate) fn limit(self, units: u32, unit: Unit) -> TestDescriptor {
        TestDescriptor { limit: Some(StatedLimit { units, unit }), ..self }
    }
}

impl DescriptorGate {
    pub(crate) fn new(texts: &[&str]) -> DescriptorGate {
        DescriptorGate::on(MemoryStore::new(10_000), texts)
    }

    pub(crate) fn at(&mut self, seconds: u64) -> &DescriptorGate {
        self.now = Micros::from_secs(seconds);
        self
    }

    pub(crate) fn try_ask(
        &self,
        domain: &str,
        asked: &[TestDescriptor],
    ) -> Result<DescriptorAnswer, DescriptorError> {
        self.asking(domain, asked, |answer| expect_ready(answer))
    }

    pub(crate) fn ask(&self, domain: &str, asked: &[TestDescriptor]) -> DescriptorAnswer {
        self.try_ask(domain, asked).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The answer in words: `OK`, or `OVER`; then each status.
    pub(crate) fn say(&self, domain: &str, asked: &[TestDescriptor]) -> String {
        said(&self.ask(domain, asked))
    }

    /// The only status of a single descriptor.
    pub(crate) fn one(&self, domain: &str, asked: TestDescriptor) -> String {
        let described = self.ask(domain, &[asked]);
        let status = described.statuses().next().unwrap();
        assert_eq!(described.allowed(), !status.over || status.enforcement.is_none());
        of(&status)
    }
}

impl<S: Store<Error = Infallible>> DescriptorGate<S> {
    /// Decides in a store of your choosing.
    pub(crate) fn on(store: S, texts: &[&str]) -> DescriptorGate<S> {
        let (store, clock) = (Arc::new(store), ManualClock::new(Micros::ZERO));
        DescriptorGate {
            gatekeeper: Gatekeeper::new(rules(texts), store.clone(), clock),
            store,
            now: Micros::from_secs(NOON),
        }
    }

    /// Puts a request, and has `wait` wait for what is answered.
    pub(crate) fn asking<T>(
        &self,
        domain: &str,
        asked: &[TestDescriptor],
        wait: impl FnOnce(Pin<&mut dyn Future<Output = Result<DescriptorAnswer, DescriptorError>>>) -> T,
    ) -> T {
        let entries: Vec<Vec<DescriptorEntry<'_>>> = asked
            .iter()
            .map(|one| {
                one.entries.iter().map(|(name, value)| DescriptorEntry { name, value }).collect()
            })
            .collect();
        let descriptors: Vec<Descriptor<'_>> = asked
            .iter()
            .zip(&entries)
            .map(|(one, entries)| Descriptor { entries, hits: one.hits, limit: one.limit })
            .collect();
        let ask = DescriptorAsk { domain, descriptors: &descriptors };
        let gatekeeper = &self.gatekeeper;
        wait(pin!(gatekeeper.decide_descriptors_by(gatekeeper.rules(), &ask, self.now)))
    }
}

pub(crate) fn said(described: &DescriptorAnswer) -> String {
    let whole = if described.allowed() { "OK" } else { "OVER" };
    let each: Vec<String> = described.statuses().map(|status| of(&status)).collect();
    format!("{whole}: {}", each.join(" | "))
}

/// `OK 10/second 9` or `OVER 10/second 0`; `OK` where there is no limit, `OK unlimited 4294967295`.
pub(crate) fn of(status: &Status<'_>) -> String {
    let code = if status.over { "OVER" } else { "OK" };
    let limit = match status.limit {
        _ if status.unlimited => format!(" unlimited {}", status.remaining),
        None => String::new(),
        Some(limit) => {
            let unit = limit.unit.map_or(format!("{:?}", limit.period), |unit| unit.name().into());
            let name = limit.name.map_or(String::new(), |name| format!(" {name}"));
            format!(" {}/{unit} {}{name}", limit.units, status.remaining)
        }
    };
    format!("{code}{limit}")
}
