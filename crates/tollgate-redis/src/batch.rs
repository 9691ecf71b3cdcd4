//! What waits becomes commands: calls that can share one script call do, in the order they came.

use std::collections::VecDeque;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate::store::breaker::Pass;

use crate::call::Call;
use crate::error::StoreError;
use crate::node::Usage;

/// Calls of one flight, and so the most that one script call answers: more would keep whoever came
/// first waiting for whoever came last.
pub(crate) const CALLS_PER_FLIGHT_MAX: usize = 128;

/// The script that answers calls: how it is written, and how its reply is read.
pub(crate) struct Script {
    /// The command that loads it.
    pub(crate) load: fn() -> Cmd,
    /// Calls as one command, by the script's name.
    pub(crate) assemble: fn(&[Call]) -> Cmd,
    /// The same with the script's text, for a server that does not have it.
    pub(crate) eval: fn(&[Call]) -> Cmd,
    /// The reply as the parts of so many calls.
    pub(crate) split: fn(Value, usize) -> Vec<Result<Value, StoreError>>,
}

/// Flights at a time as long as they come back soon: while the server works on one, the next arrives,
/// and we work on the one before; whatever comes meanwhile waits and goes together.
pub(crate) const FLIGHTS: usize = 2;
/// Flights at a time at most. From a server that is far away none comes back soon: then one more
/// leaves each time that a part of the callers' patience has passed, [`hold`].
pub(crate) const FLIGHTS_MAX: usize = 16;
/// Fewer are not worth a flight of their own.
const CALLS_PER_FLIGHT_MIN: usize = 8;

/// How long a call waits at most for a flight to come back before it leaves all the same. So short that
/// all flights there may be leave within the callers' patience; the timer rounds it up to milliseconds.
pub(crate) fn hold(patience: Duration) -> Duration {
    patience / 20
}

/// Calls of the next flight, when so many calls wait or are on their way. A part of them and not all:
/// who asks together is answered together and asks again together, and then the server would wait for
/// us whenever we wait for it. All of them beyond the usual flights: they have waited long enough.
pub(crate) fn share(calls: usize, flights: usize) -> usize {
    match flights {
        ..FLIGHTS => calls.div_ceil(FLIGHTS).clamp(CALLS_PER_FLIGHT_MIN, CALLS_PER_FLIGHT_MAX),
        _ => CALLS_PER_FLIGHT_MAX,
    }
}

/// What is asked of a server.
#[derive(Debug)]
pub(crate) enum Ask {
    Call(Call),
    Command(Cmd),
}

/// How it is to be asked, which is not the same the second time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    /// With the text of the script: the server does not have it.
    pub(crate) source: bool,
    /// By leave of the node that the slot is leaving.
    pub(crate) asking: bool,
    /// With no other call, which may be served at another node.
    pub(crate) alone: bool,
}

/// An answer, or why there is none together with the question, which can be asked again.
pub(crate) type Answer = Result<Value, Failure>;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: StoreError,
    /// The question, unless it may have been carried out.
    pub(crate) again: Option<Box<Ask>>,
    /// Leave of the breaker that is not used up: the question is only half asked.
    pub(crate) pass: Option<Pass>,
}

impl Failure {
    /// The question was not carried out.
    pub(crate) fn undone(error: StoreError, ask: Ask) -> Failure {
        Failure { error, again: Some(Box::new(ask)), pass: None }
    }
}

/// A question in line.
pub(crate) struct Job {
    pub(crate) ask: Ask,
    pub(crate) manner: Manner,
    pub(crate) seat: Seat,
}

/// Who asked.
pub(crate) struct Seat {
    /// The place in the order in which calls came.
    pub(crate) number: u64,
    pub(crate) deadline: Instant,
    /// Leave of the breaker, to be handed back with the outcome. Commands that are no calls need
    /// none and say nothing: a server that answers PING may refuse every script.
    pub(crate) pass: Option<Pass>,
    pub(crate) reply: oneshot::Sender<Answer>,
}

/// What a command on its way carries.
pub(crate) enum Cargo {
    /// Calls and who asked them, side by side. Bound: [`CALLS_PER_FLIGHT_MAX`].
    Calls(Vec<Call>, Vec<Seat>),
    Command(Cmd, Seat),
    /// Our own: nobody waits for the reply.
    Nobody,
}

/// Calls that go together.
struct Group {
    slot: Option<u16>,
    now: Option<u64>,
    manner: Manner,
    calls: Vec<Call>,
    seats: Vec<Seat>,
}

/// Writes the commands of one flight behind `out`, and what they are behind `sent`; how many.
pub(crate) fn pack(
    jobs: Vec<Job>,
    usage: &Usage,
    out: &mut Vec<u8>,
    sent: &mut VecDeque<Cargo>,
) -> usize {
    let before = sent.len();
    let mut groups: Vec<Group> = Vec::new();
    for Job { ask, manner, seat } in jobs {
        match ask {
            Ask::Call(call) => gather(&mut groups, call, manner, seat, usage.by_slot),
            Ask::Command(command) => {
                permit(manner, out, sent);
                command.write_packed_command(out);
                sent.push_back(Cargo::Command(command, seat));
            }
        }
    }
    for group in groups {
        permit(group.manner, out, sent);
        let command = match group.manner.source {
            false => (usage.script.assemble)(&group.calls),
            true => (usage.script.eval)(&group.calls),
        };
        command.write_packed_command(out);
        sent.push_back(Cargo::Calls(group.calls, group.seats));
    }
    sent.len() - before
}

fn gather(groups: &mut Vec<Group>, call: Call, manner: Manner, seat: Seat, by_slot: bool) {
    let slot = by_slot.then_some(call.slot);
    let fits = |group: &&mut Group| {
        group.slot == slot && group.now == call.now && group.manner == manner && !manner.alone
    };
    // From the end: neighbours are often alike.
    match groups.iter_mut().rev().find(fits) {
        Some(group) => {
            group.calls.push(call);
            group.seats.push(seat);
        }
        None => {
            let now = call.now;
            groups.push(Group { slot, now, manner, calls: vec![call], seats: vec![seat] });
        }
    }
}

/// ASKING holds for the one command behind it.
fn permit(manner: Manner, out: &mut Vec<u8>, sent: &mut VecDeque<Cargo>) {
    if manner.asking {
        redis::cmd("ASKING").write_packed_command(out);
        sent.push_back(Cargo::Nobody);
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
            assert_eq!(share(calls, 0), expected, "of {calls}");
            assert_eq!(share(calls, FLIGHTS), CALLS_PER_FLIGHT_MAX, "beyond the usual");
        }
    }
}
