//! How facts travel: the arguments of `lua/control.lua`, and its reply.

use super::fact_replica::{ExchangeRequest, OutgoingFact};
use super::shared_fact::{FactKind, FactName, FactTime, StoredFact};
use crate::error::{ErrorClass, StoreError};
use crate::transport::command::RedisCommand;
use crate::transport::value::RedisValue;

const SCRIPT: &str = include_str!("../lua/control.lua");

/// The most facts told in one call: none keeps the store for long.
pub(super) const SENT_FACTS_MAX: usize = 32;
/// The most facts received in one exchange, which cost less work than sent ones.
const RECEIVED_FACTS_MAX: usize = 128;
/// The most bytes of them, either way, except that a single one may be longer.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// The names of what is kept in the store, all in one slot.
#[derive(Debug)]
pub(super) struct InstanceKeys([String; 7]);

impl InstanceKeys {
    pub(super) fn new(prefix: &str) -> InstanceKeys {
        let names = ["head", "live", "blocks", "overrides", "rules", "log", "ends"];
        InstanceKeys(names.map(|name| format!("{prefix}:1:{{control}}:{name}")))
    }

    pub(super) fn live(&self) -> &str {
        &self.0[1]
    }
}

/// One call of the script. It goes with its text: four calls a second are not worth a dialogue about
/// which scripts the store knows. Who only watches the store has no name, and asks for no facts.
pub(super) fn command(
    keys: &InstanceKeys,
    me: Option<&str>,
    new_epoch: &str,
    sending: &ExchangeRequest,
) -> RedisCommand {
    let mut command = RedisCommand::new("EVAL").arg(SCRIPT).number(keys.0.len() as u64);
    for key in &keys.0 {
        command.push(key);
    }
    command = command
        .arg(me.unwrap_or(""))
        .arg(new_epoch)
        .arg(&*sending.epoch)
        .number(sending.seen_version);
    let received_max = me.map_or(0, |_| RECEIVED_FACTS_MAX);
    let bounds = [FactKind::Block.max(), FactKind::Override.max(), received_max, BYTES_MAX];
    for bound in bounds {
        command.push_number(bound as u64);
    }
    for OutgoingFact { name, fact, offset, .. } in &sending.facts {
        let sealed = fact.seal.map(|seal| seal.text(&fact.payload));
        let sealed_until = fact.seal.map(|seal| seal.until);
        let until = fact.until.map(|until| until.as_u64());
        let (mode, when, after, stop) = match fact.decided_at {
            FactTime::Here { at, after } => {
                let since = |then: u64| sending.now.as_u64().saturating_sub(then);
                // What has ended meanwhile ends at once: 0 would be never.
                let left = until.map(|until| until.saturating_sub(sending.now.as_u64()).max(1));
                ("a", since(at.as_u64()), after, left)
            }
            FactTime::Stamp(stamp) => {
                ("s", stamp, 0, until.map(|until| until.saturating_add_signed(*offset).max(1)))
            }
        };
        command = command.arg(name.kind.letter()).arg(&name.id[..]).arg(mode);
        command = command.number(when).number(after);
        let mark = match (fact.removed, mode, after) {
            (false, ..) => "+",
            // Nothing is known to be there.
            (true, "a", 0) => "~",
            (true, ..) => "-",
        };
        command = command.number(sealed_until.or(stop).unwrap_or(0)).arg(mark);
        command = command.arg(sealed.as_deref().unwrap_or(&fact.payload));
    }
    command
}

/// The result of publishing a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishOutcome {
    Accepted,
    /// A later one is there.
    Superseded,
    NoRoom,
    /// There was nothing to take back.
    NothingToRemove,
}

/// The reply of the script.
#[derive(Debug)]
pub(super) struct ExchangeReply {
    pub(super) epoch: Box<str>,
    pub(super) now: u64,
    pub(super) live_instances: u32,
    /// The version after which changes are included.
    pub(super) from: u64,
    /// The version up to which they are included.
    pub(super) to: u64,
    /// The latest version of the store.
    pub(super) version: u64,
    pub(super) outcomes: Vec<PublishOutcome>,
    pub(super) changes: Vec<(FactName, StoredFact)>,
    /// Changes that are not in our words.
    pub(super) unreadable_facts: u64,
    /// Those whose name is one of ours, with their stamp, or 0 if they have none.
    pub(super) unreadable: Vec<(FactName, u64)>,
}

impl ExchangeReply {
    pub(super) fn read(value: RedisValue) -> Result<ExchangeReply, StoreError> {
        ExchangeReply::parts(value).ok_or_else(|| {
            let detail = "the reply to what instances tell each other is not one";
            StoreError::new(ErrorClass::Protocol, detail)
        })
    }

    fn parts(value: RedisValue) -> Option<ExchangeReply> {
        let parts: [RedisValue; 8] = array(value)?.try_into().ok()?;
        let [epoch, now, live, from, to, version, outcomes, changes] = parts;
        let outcomes = array(outcomes)?.into_iter().map(|one| match one {
            RedisValue::Int(1) => Some(PublishOutcome::Accepted),
            RedisValue::Int(0) => Some(PublishOutcome::Superseded),
            RedisValue::Int(2) => Some(PublishOutcome::NoRoom),
            RedisValue::Int(3) => Some(PublishOutcome::NothingToRemove),
            _ => None,
        });
        let mut strange = 0;
        let (mut told, mut strange_names) = (Vec::new(), Vec::new());
        for change in array(changes)?.chunks(3) {
            match change_of(change) {
                Some(change) => told.push(change),
                None => {
                    strange += 1;
                    strange_names.extend(name_of(change).map(|name| (name, stamp_of(change))));
                }
            }
        }
        Some(ExchangeReply {
            epoch: String::from_utf8(bytes(&epoch)?.to_vec()).ok()?.into(),
            now: number(&now)?,
            live_instances: u32::try_from(number(&live)?).ok()?,
            from: number(&from)?,
            to: number(&to)?,
            version: number(&version)?,
            outcomes: outcomes.collect::<Option<_>>()?,
            changes: told,
            unreadable_facts: strange,
            unreadable: strange_names,
        })
    }
}

fn change_of(change: &[RedisValue]) -> Option<(FactName, StoredFact)> {
    let name = name_of(change)?;
    Some((name, StoredFact::read(name.kind, bytes(change.get(2)?)?)?))
}

fn name_of(change: &[RedisValue]) -> Option<FactName> {
    let [kind, id, _] = change else { return None };
    FactName::read(bytes(kind)?, bytes(id)?)
}

/// The stamp of a change that cannot be read.
fn stamp_of(change: &[RedisValue]) -> u64 {
    let stamp =
        change.get(2).and_then(bytes).and_then(|value| value.split(|one| *one == b',').next());
    stamp.and_then(|stamp| str::from_utf8(stamp).ok()?.parse().ok()).unwrap_or(0)
}

fn array(value: RedisValue) -> Option<Vec<RedisValue>> {
    match value {
        RedisValue::Array(values) => Some(values),
        _ => None,
    }
}

fn bytes(value: &RedisValue) -> Option<&[u8]> {
    match value {
        RedisValue::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn number(value: &RedisValue) -> Option<u64> {
    match value {
        RedisValue::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> RedisValue {
        RedisValue::BulkString(text.into())
    }

    #[test]
    fn replies_that_are_none_are_errors_and_strange_facts_are_counted() {
        let ints = |of: [i64; 5]| of.map(RedisValue::Int);
        let reply = |outcomes: Vec<RedisValue>, changes: Vec<RedisValue>| {
            let mut parts = vec![text("e")];
            parts.extend(ints([9, 2, 0, 7, 7]));
            parts.extend([RedisValue::Array(outcomes), RedisValue::Array(changes)]);
            RedisValue::Array(parts)
        };
        let block = || [text("b"), RedisValue::BulkString(vec![1; 16]), text("5,9,+,")];
        let foreign = [text("b"), text("short"), text("5,9,+,")];
        let broken = [text("o"), RedisValue::BulkString(vec![2; 16]), text("5,9,+,s2,x")];
        let changes = [block(), foreign, broken].concat().into_iter().chain([RedisValue::Nil]);
        let changes = changes.collect();
        let read = ExchangeReply::read(reply(vec![RedisValue::Int(2)], changes)).unwrap();
        assert_eq!(
            (read.live_instances, read.to, read.changes.len(), read.unreadable_facts),
            (2, 7, 1, 3)
        );
        let broken = FactName { kind: FactKind::Override, id: [2; 16] };
        assert_eq!(read.unreadable, [(broken, 5)]);
        assert_eq!(read.outcomes, [PublishOutcome::NoRoom]);
        for bad in [
            RedisValue::Nil,
            RedisValue::Array(vec![]),
            reply(vec![RedisValue::Int(4)], vec![]),
            RedisValue::Array(vec![text("e"); 8]),
        ] {
            assert!(ExchangeReply::read(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
