//! A store and the instances that share it: blocks of keys, which all of them keep to.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tollgate::{Clock, Key, Micros, Wait};
use tollgate_shared::blocks::Blocks;

use super::{InstanceChannel, InstanceSink};
use crate::options::RedisOptions;
use crate::store::RedisStore;

/// The channel between the instances on a store; idle until an instance joins.
pub(crate) struct StoreInstances {
    prefix: Box<str>,
    /// The secret that seals rules and overrides.
    secret: Option<Box<[u8]>>,
    blocks: Arc<Blocks>,
    channel: OnceLock<InstanceChannel>,
    /// The watch over data that the store loses, if this instance does not join.
    pub(super) watch: OnceLock<InstanceChannel>,
}

impl fmt::Debug for StoreInstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instances").field("blocks", &self.blocks.len()).finish_non_exhaustive()
    }
}

impl StoreInstances {
    pub(crate) fn new(options: &RedisOptions) -> StoreInstances {
        StoreInstances {
            prefix: options.prefix.as_str().into(),
            secret: options.key_secret.as_deref().map(Into::into),
            blocks: Arc::default(),
            channel: OnceLock::new(),
            watch: OnceLock::new(),
        }
    }
}

impl RedisStore {
    /// Starts the exchange of blocks, overrides and rules with the other instances on this store, on
    /// the runtime it is called on. A second call returns the same channel and ignores its arguments.
    pub fn join_instances(
        &self,
        sink: Arc<dyn InstanceSink>,
        clock: impl Clock + 'static,
    ) -> InstanceChannel {
        let StoreInstances { prefix, secret, blocks, channel: control, .. } = &*self.instances;
        let start = || {
            let (link, names) = (self.link.separate_link(), (&**prefix, secret.as_deref()));
            InstanceChannel::start(link, names, blocks.clone(), sink, clock)
        };
        control.get_or_init(start).clone()
    }

    /// Starts to watch for data that this store loses, on the runtime it is called on, without joining the instances on
    /// it: they do not share their limits with this one, and hear nothing of it.
    pub fn watch_data(&self, clock: impl Clock + 'static) {
        let StoreInstances { prefix, watch, .. } = &*self.instances;
        watch.get_or_init(|| InstanceChannel::watch(self.link.separate_link(), prefix, clock));
    }

    /// Times that the store had lost data that it had at an earlier call; 0 if this instance has neither joined nor
    /// watches.
    pub fn data_losses(&self) -> u64 {
        let StoreInstances { channel, watch, .. } = &*self.instances;
        channel.get().or(watch.get()).map_or(0, |channel| channel.stats().data_losses)
    }

    /// Blocks a key until an instant: in this process at once and, if it has joined the instances,
    /// soon in all that have. Returns false if there is no room for the block.
    pub(crate) fn block_key(&self, key: Key<'_>, until: Micros, now: Micros) -> bool {
        let hash = self.key_namer.hash(key.as_bytes());
        match self.instances.channel.get() {
            Some(control) => control.block(hash, until).is_some(),
            None => self.instances.blocks.block(hash, until, now),
        }
    }

    /// Lifts a block: in this process at once and, if it has joined the instances, soon in all that
    /// have. Returns true if there was one.
    pub(crate) fn unblock_key(&self, key: Key<'_>, now: Micros) -> bool {
        let hash = self.key_namer.hash(key.as_bytes());
        match self.instances.channel.get() {
            Some(control) => control.unblock(hash),
            None => self.instances.blocks.unblock(hash, now),
        }
    }

    /// The rest of a key's block, as far as this instance knows.
    pub(crate) fn key_blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        let blocks = &self.instances.blocks;
        blocks.any(now).then(|| blocks.blocked(self.key_namer.hash(key.as_bytes()), now)).flatten()
    }

    /// Returns false if certainly no key is blocked.
    #[inline]
    pub(crate) fn any_key_blocked(&self, now: Micros) -> bool {
        self.instances.blocks.any(now)
    }
}
