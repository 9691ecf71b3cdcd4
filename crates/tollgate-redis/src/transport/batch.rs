//! What waits becomes commands: calls that can share one script call do, in the order they came.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate::store::breaker::BreakerPass;

use crate::error::StoreError;
use crate::script::call::ScriptCall;
use crate::transport::command::RedisCommand;
use crate::transport::node::NodeOptions;
use crate::transport::value::RedisValue;

/// Calls of one flight, and so the most that one script call answers: with more, the first caller
/// would wait for the last.
pub(crate) const CALLS_PER_FLIGHT_MAX: usize = 128;

/// The script that answers calls: how it is written, and how its reply is read.
pub(crate) struct Script {
    /// The command that loads it.
    pub(crate) load: fn() -> RedisCommand,
    /// Calls as one command, by the script's name.
    pub(crate) assemble: fn(&[ScriptCall]) -> RedisCommand,
    /// The same with the script's text, for a server that does not have it.
    pub(crate) eval: fn(&[ScriptCall]) -> RedisCommand,
    /// The reply as the parts of so many calls.
    pub(crate) split: fn(RedisValue, usize) -> Vec<Result<RedisValue, StoreError>>,
}

/// Flights at a time as long as they come back soon: while the server works on one, the next arrives,
/// and we work on the one before; whatever comes meanwhile waits and goes together.
pub(crate) const FLIGHTS_USUAL: usize = 2;
/// Flights at a time at most. From a server that is far away none comes back soon: then one more
/// leaves each time that a part of the callers' patience has passed, [`hold_max`].
pub(crate) const FLIGHTS_MAX: usize = 16;
/// Fewer are not worth a flight of their own.
const CALLS_PER_FLIGHT_MIN: usize = 8;

/// The longest wait of a call for a flight to return before it leaves anyway. Short enough that all
/// flights can leave within the caller's timeout; the timer rounds it up to milliseconds.
pub(crate) fn hold_max(patience: Duration) -> Duration {
    patience / 20
}

/// Calls of the next flight, when so many calls wait or are on their way. A part of them and not all:
/// who asks together is answered together and asks again together, and then the server would wait for
/// us whenever we wait for it. All of them beyond the usual flights: they have waited long enough.
pub(crate) fn calls_per_flight(calls: usize, flights: usize) -> usize {
    match flights {
        ..FLIGHTS_USUAL => {
            calls.div_ceil(FLIGHTS_USUAL).clamp(CALLS_PER_FLIGHT_MIN, CALLS_PER_FLIGHT_MAX)
        }
        _ => CALLS_PER_FLIGHT_MAX,
    }
}

/// A request to a server.
#[derive(Debug)]
pub(crate) enum NodeRequest {
    Call(ScriptCall),
    Command(RedisCommand),
}

/// Options of sending, which differ for a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendOptions {
    /// With the text of the script: the server does not have it.
    pub(crate) with_source: bool,
    /// Sends ASKING first, because the slot is migrating to this node.
    pub(crate) asking: bool,
    /// With no other call, which may be served at another node.
    pub(crate) ungrouped: bool,
}

/// An answer, or why there is none together with the question, which can be asked again.
pub(crate) type NodeResult = Result<RedisValue, NodeFailure>;

#[derive(Debug)]
pub(crate) struct NodeFailure {
    pub(crate) error: StoreError,
    /// The question, unless it may have been carried out.
    pub(crate) retry_request: Option<Box<NodeRequest>>,
    /// Leave of the breaker that is not used up: the question is only half asked.
    pub(crate) pass: Option<BreakerPass>,
}

impl NodeFailure {
    /// The question was not carried out.
    pub(crate) fn not_executed(error: StoreError, ask: NodeRequest) -> NodeFailure {
        NodeFailure { error, retry_request: Some(Box::new(ask)), pass: None }
    }
}

/// A question in line.
pub(crate) struct QueuedRequest {
    pub(crate) request: NodeRequest,
    pub(crate) options: SendOptions,
    pub(crate) pending_reply: PendingReply,
}

/// A caller that waits for a reply.
pub(crate) struct PendingReply {
    /// The place in the order in which calls came.
    pub(crate) arrival_number: u64,
    pub(crate) deadline: Instant,
    /// Leave of the breaker, to be handed back with the outcome. Commands that are no calls need
    /// none and say nothing: a server that answers PING may refuse every script.
    pub(crate) pass: Option<BreakerPass>,
    pub(crate) reply: oneshot::Sender<NodeResult>,
}

/// The contents of a command in flight.
pub(crate) enum SentCommand {
    /// Calls and who asked them, side by side. Bound: [`CALLS_PER_FLIGHT_MAX`].
    Calls(Vec<ScriptCall>, Vec<PendingReply>),
    Command(RedisCommand, PendingReply),
    /// Our own: nobody waits for the reply.
    Unawaited,
}

/// Calls that go together.
struct CallGroup {
    slot: Option<u16>,
    now: Option<u64>,
    options: SendOptions,
    calls: Vec<ScriptCall>,
    pending_replies: Vec<PendingReply>,
}

/// Writes the commands of one flight behind `out`, and what they are behind `sent`; how many.
pub(crate) fn write_flight(
    jobs: Vec<QueuedRequest>,
    usage: &NodeOptions,
    out: &mut Vec<u8>,
    sent: &mut VecDeque<SentCommand>,
) -> usize {
    let before = sent.len();
    let mut groups: Vec<CallGroup> = Vec::new();
    for QueuedRequest { request: ask, options: manner, pending_reply: seat } in jobs {
        match ask {
            NodeRequest::Call(call) => add_to_group(&mut groups, call, manner, seat, usage.by_slot),
            NodeRequest::Command(command) => {
                write_asking(manner, out, sent);
                command.write_to(out);
                sent.push_back(SentCommand::Command(command, seat));
            }
        }
    }
    for group in groups {
        write_asking(group.options, out, sent);
        let command = match group.options.with_source {
            false => (usage.script.assemble)(&group.calls),
            true => (usage.script.eval)(&group.calls),
        };
        command.write_to(out);
        sent.push_back(SentCommand::Calls(group.calls, group.pending_replies));
    }
    sent.len() - before
}

fn add_to_group(
    groups: &mut Vec<CallGroup>,
    call: ScriptCall,
    manner: SendOptions,
    seat: PendingReply,
    by_slot: bool,
) {
    let slot = by_slot.then_some(call.slot);
    let fits = |group: &&mut CallGroup| {
        group.slot == slot && group.now == call.now && group.options == manner && !manner.ungrouped
    };
    // From the end: neighbours are often alike.
    match groups.iter_mut().rev().find(fits) {
        Some(group) => {
            group.calls.push(call);
            group.pending_replies.push(seat);
        }
        None => {
            let now = call.now;
            groups.push(CallGroup {
                slot,
                now,
                options: manner,
                calls: vec![call],
                pending_replies: vec![seat],
            });
        }
    }
}

/// ASKING holds for the one command behind it.
fn write_asking(manner: SendOptions, out: &mut Vec<u8>, sent: &mut VecDeque<SentCommand>) {
    if manner.asking {
        RedisCommand::new("ASKING").write_to(out);
        sent.push_back(SentCommand::Unawaited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flight_takes_its_share() {
        // Calls that wait or are on their way, calls of the next flight.
        for (calls, expected) in
            [(0, 8), (1, 8), (16, 8), (17, 9), (64, 32), (255, 128), (256, 128), (4096, 128)]
        {
            assert_eq!(calls_per_flight(calls, 0), expected, "of {calls}");
            assert_eq!(
                calls_per_flight(calls, FLIGHTS_USUAL),
                CALLS_PER_FLIGHT_MAX,
                "beyond the usual"
            );
        }
    }
}
