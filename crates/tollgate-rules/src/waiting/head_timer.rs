//! `HeadTimer`: the only timer of a queue or a line, set by its head.

use std::task::{Context, Poll};

use tollgate::Micros;

use super::{BoxedSleep, TurnSleepFn};

/// The sleep of a head until an instant, if it sleeps.
#[derive(Default)]
pub(super) struct HeadTimer(Option<(Micros, BoxedSleep)>);

impl HeadTimer {
    /// Ends the sleep of a request that is not the head.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Sleeps until `at`. When it is ready, the caller looks at its own clock again: a timer may fire early, and its clock
    /// may run at another speed.
    pub(super) fn poll_until(
        &mut self,
        (now, at): (Micros, Micros),
        sleep: &TurnSleepFn,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let current = self.0.take().filter(|(set_for, _)| *set_for == at);
        let new = || (at, sleep(now.until(at).duration().unwrap_or_default()));
        let (_, sleeping) = self.0.insert(current.unwrap_or_else(new));
        let polled = sleeping.as_mut().poll(context);
        if polled.is_ready() {
            self.clear();
        }
        polled
    }
}
