//! The arguments of one script call: keys, limits, bodies, and the plan that says how they belong together.
//! `lua/begin.lua` describes the plan.
//!
//! Requests for one unit of one limit are ordered by limit and key, so that the script reads each limit once,
//! and reads and writes each key once. This changes no answer: all requests have one instant, and a key that is
//! also used in another way is left to bodies, which the script carries out in the order of the calls.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use tollgate::Algorithm;

use crate::script::call::{ScriptBody, ScriptCall};
use crate::script::operation;
use crate::script::state::algorithm_number;
use crate::transport::batch::CALLS_PER_FLIGHT_MAX;
use crate::transport::command::RedisCommand;

// The plan is of bytes: numbers of limits and keys from 1 on, and of replies from 2 on.
const _: () = assert!(CALLS_PER_FLIGHT_MAX < 254);

/// Appends the arguments for calls, at most [`CALLS_PER_FLIGHT_MAX`].
pub(super) fn push_calls(mut command: RedisCommand, calls: &[ScriptCall]) -> RedisCommand {
    let mut limits = CallLimits::default();
    let (takes, others) = split_calls(calls, &mut limits);
    let (mut keys, mut plan) = (Vec::with_capacity(calls.len()), vec![0]);
    for of_limit in takes.chunk_by(|a, b| a.limit == b.limit) {
        let of_keys = of_limit.chunk_by(|a, b| a.key_number == b.key_number);
        plan.extend([of_limit[0].limit, of_keys.clone().count() as u8]);
        for of_key in of_keys {
            keys.push(of_key[0].key);
            plan.push(of_key.len() as u8);
            plan.extend(of_key.iter().map(|take| take.reply));
        }
    }
    plan[0] = keys.len() as u8;
    let mut bodies = Vec::with_capacity(others.len());
    for index in others {
        let call = &calls[index];
        keys.extend(call.keys.iter().map(Vec::as_slice));
        plan.push(reply_number(index));
        bodies.push(body_with_limits(call, &mut limits));
    }
    command.push_number(keys.len() as u64);
    keys.into_iter().for_each(|key| command.push(key));
    match calls.first().and_then(|call| call.now) {
        Some(now) => command.push_number(now),
        None => command.push(""),
    }
    command.push(plan);
    limits.list.into_iter().for_each(|limit| command.push(limit));
    bodies.into_iter().rev().for_each(|body| command.push(body));
    command
}

/// A request for one unit of one limit.
struct UnitTake<'a> {
    limit: u8,
    /// Number of the key, in the order of the calls.
    key_number: usize,
    key: &'a [u8],
    reply: u8,
}

/// The use of a key by the calls.
struct KeyUse<'a> {
    /// The one limit of which all calls take single units; `None` if calls use the key in other ways too.
    limit: Option<&'a Arc<[u8]>>,
    key: &'a [u8],
}

/// Splits calls into single units, ordered by limit and key, and the indices of all others.
fn split_calls<'a>(
    calls: &'a [ScriptCall],
    limits: &mut CallLimits<'a>,
) -> (Vec<UnitTake<'a>>, Vec<usize>) {
    let mut numbers: HashMap<&[u8], usize> = HashMap::with_capacity(calls.len());
    let mut uses: Vec<KeyUse<'_>> = Vec::with_capacity(calls.len());
    let mut key_numbers = Vec::with_capacity(calls.len());
    for call in calls {
        let limit = unit_limit(call);
        let mut number = 0;
        for key in &call.keys {
            number = match numbers.entry(key) {
                Entry::Vacant(entry) => {
                    uses.push(KeyUse { limit, key });
                    *entry.insert(uses.len() - 1)
                }
                Entry::Occupied(entry) => {
                    let known = &mut uses[*entry.get()].limit;
                    *known = known.filter(|known| limit.is_some_and(|limit| *known == limit));
                    *entry.get()
                }
            };
        }
        key_numbers.push(number);
    }
    let (mut takes, mut others) = (Vec::with_capacity(calls.len()), Vec::new());
    for (index, key_number) in key_numbers.into_iter().enumerate() {
        let KeyUse { limit, key } = uses[key_number];
        match limit.filter(|_| unit_limit(&calls[index]).is_some()) {
            Some(limit) => {
                let limit = limits.number(limit) as u8;
                takes.push(UnitTake { limit, key_number, key, reply: reply_number(index) });
            }
            None => others.push(index),
        }
    }
    takes.sort_by_key(|take| (take.limit, take.key_number));
    (takes, others)
}

/// The limit of a call that takes one unit of it and that `lua/take.lua` can decide.
fn unit_limit(call: &ScriptCall) -> Option<&Arc<[u8]>> {
    match (&call.body, &call.limits[..]) {
        (None, [limit]) if limit[0] != algorithm_number(Algorithm::SlidingWindowLog) => Some(limit),
        _ => None,
    }
}

/// The index of a call's reply in the reply of the script; the first one is the instant.
fn reply_number(call: usize) -> u8 {
    call as u8 + 2
}

/// The limits of one call of the script. Bound: those of the calls that travel together.
#[derive(Default)]
struct CallLimits<'a> {
    list: Vec<&'a Arc<[u8]>>,
    numbers: HashMap<&'a [u8], usize>,
}

impl<'a> CallLimits<'a> {
    /// The number by which the script knows a limit, from 1 on.
    fn number(&mut self, limit: &'a Arc<[u8]>) -> usize {
        // Nearly always it is the limit of the request before, too.
        if let Some(last) = self.list.last()
            && Arc::ptr_eq(last, limit)
        {
            return self.list.len();
        }
        *self.numbers.entry(limit).or_insert_with(|| {
            self.list.push(limit);
            self.list.len()
        })
    }
}

/// The body of a call, with the numbers of its limits.
fn body_with_limits<'a>(call: &'a ScriptCall, limits: &mut CallLimits<'a>) -> Vec<u8> {
    let (head, tail) = match &call.body {
        Some(ScriptBody { head, tail }) => (&head[..], &tail[..]),
        None => (&[operation::TAKE][..], &[][..]),
    };
    let mut bytes = head.to_vec();
    for limit in &call.limits {
        bytes.extend_from_slice(&(limits.number(limit) as u16).to_le_bytes());
    }
    bytes.extend_from_slice(tail);
    bytes
}
