//! Waiting for several answers of a store at once, so that all of them take one deadline, not one
//! each.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Waits for all futures and returns their outputs in order. They are polled in order, so their requests are
/// sent in order.
pub async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut all = true;
        for (future, answer) in waiting.iter_mut().filter(|(_, answer)| answer.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(ready) => *answer = Some(ready),
                Poll::Pending => all = false,
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    waiting.into_iter().map(|(_, answer)| answer.expect("all have answered")).collect()
}

/// Waits for both of these.
pub async fn join_both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(answer) = one.as_mut().poll(context)
        {
            first = Some(answer);
        }
        if second.is_none()
            && let Poll::Ready(answer) = other.as_mut().poll(context)
        {
            second = Some(answer);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::{Context, Waker};

    use super::*;

    /// Returns the answer at the second poll, and counts the polls.
    async fn later(asked: &Cell<u32>, answer: u32) -> u32 {
        let mut before = false;
        poll_fn(|_| {
            asked.set(asked.get() + 1);
            match std::mem::replace(&mut before, true) {
                true => Poll::Ready(answer),
                false => Poll::Pending,
            }
        })
        .await
    }

    #[test]
    fn all_are_asked_before_any_is_waited_for() {
        let asked = Cell::new(0);
        let context = &mut Context::from_waker(Waker::noop());
        let mut all = pin!(join_all((0..16).map(|answer| later(&asked, answer))));
        assert!(all.as_mut().poll(context).is_pending());
        assert_eq!(asked.get(), 16);
        assert_eq!(all.as_mut().poll(context), Poll::Ready((0..16).collect::<Vec<_>>()));
        asked.set(0);
        let mut two = pin!(join_both(later(&asked, 1), later(&asked, 2)));
        assert!(two.as_mut().poll(context).is_pending());
        assert_eq!(asked.get(), 2);
        assert_eq!(two.as_mut().poll(context), Poll::Ready((1, 2)));
        let mut both = pin!(join_both(std::future::ready(1), later(&asked, 2)));
        assert!(both.as_mut().poll(context).is_pending());
        assert_eq!(both.as_mut().poll(context), Poll::Ready((1, 2)));
    }
}
