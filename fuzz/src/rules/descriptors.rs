//! Requests of descriptors under rules that compiled twice: both decide alike, every descriptor has its
//! status, and what is refused says why and for how long.

use tollgate::headers::Dialect;
use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::descriptors::{ACT, FORCE};
use tollgate_rules::gatekeeper::expect_ready;
use tollgate_rules::{
    Descriptor, DescriptorAnswer, DescriptorAsk, DescriptorEntry, DescriptorError, Gatekeeper,
    Hits, StatedLimit, Unit,
};

use super::source::FuzzSource;

type GatekeeperPair = [Gatekeeper<MemoryStore, ManualClock>; 2];

/// Asks both gatekeepers one request made of these words.
pub(super) fn ask_both(
    gatekeepers: &GatekeeperPair,
    words: &[&str],
    now: Micros,
    source: &mut FuzzSource<'_>,
) {
    let rules = gatekeepers[0].rules();
    let domains = rules.domains();
    let domain = match source.below(8) {
        0 => "",
        1 => "edge",
        _ => domains.get(source.below(domains.len().max(1))).copied().unwrap_or("edge"),
    };
    let most = if source.one_in(32) { 70 } else { 4 };
    let many = 1 + source.below(most);
    let entries: Vec<Vec<DescriptorEntry<'_>>> =
        (0..many).map(|_| entries(words, source)).collect();
    let descriptors: Vec<Descriptor<'_>> =
        entries.iter().map(|entries| descriptor(entries, source)).collect();
    let ask = DescriptorAsk { domain, descriptors: &descriptors };
    let [one, two] = gatekeepers.each_ref().map(|gatekeeper| {
        expect_ready(gatekeeper.decide_descriptors_by(gatekeeper.rules(), &ask, now))
    });
    match (one, two) {
        (Ok(one), Ok(two)) => {
            let said = |one: &DescriptorAnswer| {
                (
                    one.allowed(),
                    one.retry_after(),
                    format!("{:?}", one.statuses().collect::<Vec<_>>()),
                )
            };
            assert_eq!(said(&one), said(&two), "decided twice");
            check(&one, &ask);
        }
        (one, two) => {
            let error =
                |one: Result<DescriptorAnswer, DescriptorError>| one.err().map(|it| it.to_string());
            let (one, two) = (error(one), error(two));
            assert_eq!(one, two, "decided twice");
            assert!(one.is_some_and(|text| !text.is_empty()));
        }
    }
}

fn entries<'a>(words: &[&'a str], source: &mut FuzzSource<'_>) -> Vec<DescriptorEntry<'a>> {
    let word = |source: &mut FuzzSource<'_>| words[source.below(words.len())];
    let mut entries: Vec<DescriptorEntry<'a>> = (0..source.below(5))
        .map(|_| DescriptorEntry { name: word(source), value: word(source) })
        .collect();
    if source.one_in(8) {
        entries.push(DescriptorEntry {
            name: ACT,
            value: source.pick(&[FORCE, FORCE, FORCE, "", "take"]),
        });
    }
    entries
}

fn descriptor<'a>(
    entries: &'a [DescriptorEntry<'a>],
    source: &mut FuzzSource<'_>,
) -> Descriptor<'a> {
    let hits = match source.below(8) {
        0..=3 => None,
        4 | 5 => Some(Hits::Take(source.number())),
        6 => Some(Hits::Refund(Some(source.number()))),
        _ => Some(Hits::Force(source.number())),
    };
    let limit = source
        .one_in(8)
        .then(|| StatedLimit { units: source.number() as u32, unit: source.pick(&Unit::ALL) });
    Descriptor { entries, hits, limit }
}

fn check(described: &DescriptorAnswer, ask: &DescriptorAsk<'_>) {
    let context = || format!("{ask:?}: {described:?}");
    assert_eq!(described.statuses().len(), ask.descriptors.len(), "{}", context());
    let over = described.statuses().filter(|status| status.over).count();
    match described.allowed() {
        true => assert!(described.retry_after().is_zero(), "{}", context()),
        false => {
            assert!(over > 0 && !described.retry_after().is_zero(), "{}", context());
        }
    }
    for status in described.statuses() {
        assert!(!status.over || status.limit.is_some(), "{}", context());
        assert_eq!(status.over, !status.retry_after.is_zero(), "{}", context());
        assert!(!status.unlimited || status.limit.is_none(), "{}", context());
        assert_eq!(status.limit.is_some(), status.enforcement.is_some(), "{}", context());
    }
    let answer = described.answer();
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    for (name, value) in reply.headers(&Dialect::ALL) {
        let value = value.to_string();
        assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {value:?}");
    }
    assert_eq!(reply.problem().is_some(), !described.allowed(), "{}", context());
}
