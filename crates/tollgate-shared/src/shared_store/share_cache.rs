//! What a limit is for one of several instances that cannot ask the store: made once, kept.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tollgate::Limit;

/// Bound: so many limits are kept; one more begins anew.
const LIMITS_MAX: usize = 4_096;

/// Limits divided by the number of instances.
#[derive(Debug, Default)]
pub(super) struct ShareCache {
    current: RwLock<InstanceShare>,
}

#[derive(Debug, Default)]
struct InstanceShare {
    instances: u32,
    /// Limits by identity and numbers. Bound: `LIMITS_MAX`.
    limits: HashMap<(u64, u64), Arc<Limit>>,
}

impl ShareCache {
    /// The share of one of so many instances.
    pub(super) fn share_of(&self, limit: &Limit, instances: u32) -> Arc<Limit> {
        let name = (limit.id(), limit.fingerprint());
        let kept = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if kept.instances == instances
            && let Some(share) = kept.limits.get(&name)
        {
            return Arc::clone(share);
        }
        drop(kept);
        let share = Arc::new(limit.share(instances));
        let mut kept = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if kept.instances != instances || kept.limits.len() >= LIMITS_MAX {
            *kept = InstanceShare { instances, limits: HashMap::new() };
        }
        kept.limits.insert(name, Arc::clone(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_number_of_instances_and_stay_bounded() {
        let shares = ShareCache::default();
        for (instances, units) in [(3, 34), (3, 34), (2, 50), (1, 100), (3, 34)] {
            let limit = "100/minute".parse().unwrap();
            assert_eq!(shares.share_of(&limit, instances).units(), units);
        }
        // The same numbers, other waits: a share of its own.
        let leaky = || Limit::per_minute(100).algorithm(tollgate::Algorithm::LeakyBucket);
        for limit in [leaky(), leaky().queue()].map(|one| one.build().unwrap()) {
            assert_eq!(shares.share_of(&limit, 3).is_queue(), limit.is_queue());
        }
        for units in 1..=2 * LIMITS_MAX as u64 {
            shares.share_of(&Limit::per_minute(units).build().unwrap(), 2);
        }
        assert!(shares.current.read().unwrap().limits.len() <= LIMITS_MAX);
    }
}
