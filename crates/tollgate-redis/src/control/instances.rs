//! A store and the instances that share it: blocks of keys, which all of them keep to.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tollgate::{Clock, Key, Micros, Wait};

use super::{Control, ControlSink};
use crate::blocks::Blocks;
use crate::store::RedisStore;

/// What the instances on a store tell each other; nothing, until somebody begins to.
pub(crate) struct Instances {
    prefix: Box<str>,
    blocks: Arc<Blocks>,
    control: OnceLock<Control>,
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

impl Instances {
    pub(crate) fn new(prefix: &str) -> Instances {
        Instances { prefix: prefix.into(), blocks: Arc::default(), control: OnceLock::new() }
    }
}

impl RedisStore {
    /// Begins to tell the other instances on this store of blocks, overrides and rules, and to hear of
    /// theirs, on the runtime it is called on. Once: a second time it is the same.
    pub fn start_control(
        &self,
        sink: Arc<dyn ControlSink>,
        clock: impl Clock + 'static,
    ) -> Control {
        let Instances { prefix, blocks, control } = &*self.instances;
        let start = || Control::start(self.link.beside(), prefix, blocks.clone(), sink, clock);
        control.get_or_init(start).clone()
    }

    /// Refuses a key everything until an instant, here at once and at all instances soon.
    pub(crate) fn block_key(&self, key: Key<'_>, until: Micros, now: Micros) -> bool {
        let hash = self.names.hash(key.as_bytes());
        match self.instances.control.get() {
            Some(control) => control.block(hash, until).is_some(),
            None => self.instances.blocks.block(hash, until, now),
        }
    }

    /// Lifts a block, here at once and at all instances soon. Whether there was one.
    pub(crate) fn unblock_key(&self, key: Key<'_>, now: Micros) -> bool {
        let hash = self.names.hash(key.as_bytes());
        match self.instances.control.get() {
            Some(control) => control.unblock(hash),
            None => self.instances.blocks.unblock(hash, now),
        }
    }

    /// How long a key is still blocked, as far as this instance knows.
    pub(crate) fn key_blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        let blocks = &self.instances.blocks;
        blocks.any(now).then(|| blocks.blocked(self.names.hash(key.as_bytes()), now)).flatten()
    }

    /// Whether any key may be blocked.
    #[inline]
    pub(crate) fn any_key_blocked(&self, now: Micros) -> bool {
        self.instances.blocks.any(now)
    }
}
